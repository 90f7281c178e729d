// A publisher as Proton's C++ documentation has it: the first address, failover_urls, and Proton's own reconnecting.
// `publisher QUEUE URL...` sends numbered messages one after the other, each until it is accepted, and prints the number
// of each that was. It adds nothing to the client: no order of its own, no look at any error.
#include <proton/connection.hpp>
#include <proton/connection_options.hpp>
#include <proton/container.hpp>
#include <proton/duration.hpp>
#include <proton/error_condition.hpp>
#include <proton/message.hpp>
#include <proton/messaging_handler.hpp>
#include <proton/reconnect_options.hpp>
#include <proton/sender.hpp>
#include <proton/tracker.hpp>
#include <proton/transport.hpp>
#include <proton/work_queue.hpp>

#include <iostream>
#include <string>
#include <vector>

class publisher : public proton::messaging_handler {
    const std::string queue;
    const std::vector<std::string> urls;
    proton::sender sender;
    int number = 0;
    bool is_due = true;

  public:
    publisher(const std::string& queue, const std::vector<std::string>& urls) : queue(queue), urls(urls) {}

    void on_container_start(proton::container& container) override {
        proton::reconnect_options reconnect;
        reconnect.failover_urls(std::vector<std::string>(urls.begin() + 1, urls.end()));
        container.connect(urls.front(), proton::connection_options().reconnect(reconnect));
    }

    void on_connection_open(proton::connection& connection) override {
        if (!sender) sender = connection.open_sender(queue);
    }

    // A broker, the first or another one, knows nothing of what was under way.
    void on_sender_open(proton::sender& opened) override {
        sender = opened;
        is_due = true;
    }

    void on_sendable(proton::sender&) override { send(); }

    void on_tracker_accept(proton::tracker&) override {
        std::cout << number++ << std::endl;
        again_soon();
    }

    void on_tracker_reject(proton::tracker&) override { again_soon(); }
    void on_tracker_release(proton::tracker&) override { again_soon(); }

    // Without these, Proton throws an exception when it has been told an error.
    void on_transport_error(proton::transport& transport) override { std::cerr << transport.error() << std::endl; }
    void on_connection_error(proton::connection& connection) override { std::cerr << connection.error() << std::endl; }

  private:
    void again_soon() {
        sender.work_queue().schedule(20 * proton::duration::MILLISECOND, [this]() {
            is_due = true;
            send();
        });
    }

    void send() {
        if (is_due && sender.credit() > 0) {
            is_due = false;
            sender.send(proton::message(std::to_string(number)));
        }
    }
};

int main(int count, char** arguments) {
    publisher handler(arguments[1], std::vector<std::string>(arguments + 2, arguments + count));
    proton::container(handler).run();
    return 0;
}
