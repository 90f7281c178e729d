/* Messages and what is said of them, many in one call, over the functions of Proton's engine.
 *
 * This is not linked with Proton: `proton_calls_known` is given the addresses once, of the library that the interpreter
 * has loaded. Types are Proton's, by their names alone (proton/types.h, 0.40). Nothing is allocated here; pointers to
 * links, collectors and deliveries are Proton's own and come from Python, which keeps what they are part of.
 *
 * An array `deliveries` has room for `most` or `count` pointers to pn_delivery_t. */

typedef struct pn_collector_t pn_collector_t;
typedef struct pn_delivery_t pn_delivery_t;
typedef struct pn_event_t pn_event_t;
typedef struct pn_link_t pn_link_t;
typedef struct pn_bytes_t {
    size_t size;
    const char *start;
} pn_bytes_t;

enum {
    EVENT_DELIVERY = 28, /* PN_DELIVERY; Python compares it */
    NUMBER_DIGITS = 16
};

/* In the order in which Python names them. */
static struct {
    pn_event_t *(*peek)(pn_collector_t *);
    bool (*pop)(pn_collector_t *);
    unsigned (*type_of)(pn_event_t *);
    pn_delivery_t *(*delivery_of)(pn_event_t *);
    pn_link_t *(*link_of)(pn_delivery_t *);
    size_t (*pending)(pn_delivery_t *);
    bool (*is_partial)(pn_delivery_t *);
    bool (*is_readable)(pn_delivery_t *);
    bool (*is_settled)(pn_delivery_t *);
    uint64_t (*state_of)(pn_delivery_t *);
    ssize_t (*receive)(pn_link_t *, char *, size_t);
    bool (*advance)(pn_link_t *);
    pn_delivery_t *(*new_delivery)(pn_link_t *, pn_bytes_t);
    ssize_t (*write)(pn_link_t *, const char *, size_t);
    void (*update)(pn_delivery_t *, uint64_t);
    void (*settle)(pn_delivery_t *);
} proton;

/* Whether that were all: the addresses of Proton's functions. */
int proton_calls_known(const uintptr_t *addresses, size_t count) {
    if (count * sizeof *addresses != sizeof proton) return 0;
    for (size_t at = 0; at < count; at++)
        if (!addresses[at]) return 0;
    memcpy(&proton, addresses, sizeof proton);
    return 1;
}

/* The delivery of the next event, if it is one of that link. */
static pn_delivery_t *next_delivery(pn_collector_t *collector, pn_link_t *link) {
    pn_event_t *event = proton.peek(collector);
    if (!event || proton.type_of(event) != EVENT_DELIVERY) return NULL;
    pn_delivery_t *delivery = proton.delivery_of(event);
    return proton.link_of(delivery) == link ? delivery : NULL;
}

/* Take events of a link on which messages come, `most` at most.
 *
 * Whole messages go into `buffer`, one behind the other: of number i, `ends[i]` is where it ends there. From the
 * other end of `deliveries`, `states` and `settled`, the last first, come the deliveries of which there is nothing to
 * read and which the peer has settled. `result`: messages, such settled ones, events that were taken, and whether all
 * messages are unsettled and without a state. Returns why it has stopped: RECEIVED_END, there is no more;
 * RECEIVED_UNUSUAL, the next event is of a delivery that is large, empty, not whole or taken back, and still there;
 * RECEIVED_FULL, the next one has no room here. */
int receive_deliveries(void *collector, void *link, char *buffer, size_t room, void *deliveries, int32_t *ends,
                       uint64_t *states, bool *settled, int most, int32_t *result) {
    pn_delivery_t **out = deliveries;
    int count = 0, back = most, stop = RECEIVED_END;
    int32_t events = 0, is_plain = 1;
    size_t used = 0;
    pn_delivery_t *delivery;
    if (room > INT32_MAX) room = INT32_MAX;
    while (events < most && (delivery = next_delivery(collector, link))) {
        size_t size = proton.pending(delivery);
        ssize_t received = 0;
        if (size && size <= room && !proton.is_partial(delivery)) {
            if (size > room - used) {
                stop = RECEIVED_FULL;
                break;
            }
            /* Of one that was taken back Proton says that a byte is pending, and gives none. */
            received = proton.receive(link, buffer + used, size);
        }
        if (received > 0) {
            used += (size_t)received;
            proton.advance(link);
            out[count] = delivery;
            ends[count] = (int32_t)used;
            settled[count] = proton.is_settled(delivery);
            states[count] = proton.state_of(delivery);
            is_plain &= !settled[count] && !states[count];
            count++;
        } else if (size || proton.is_readable(delivery)) {
            stop = RECEIVED_UNUSUAL;
            break;
        } else if (proton.is_settled(delivery)) {
            back--;
            out[back] = delivery;
            settled[back] = true;
            states[back] = proton.state_of(delivery);
        }
        events++;
        proton.pop(collector);
    }
    result[0] = count;
    result[1] = most - back;
    result[2] = events;
    result[3] = is_plain;
    return stop;
}

/* Take events of a link on which messages go, `most` at most: what the peer says of each. Returns how many it were. */
int take_answers(void *collector, void *link, void *deliveries, uint64_t *states, bool *settled, int most) {
    pn_delivery_t **out = deliveries, *delivery;
    int count = 0;
    while (count < most && (delivery = next_delivery(collector, link))) {
        out[count] = delivery;
        states[count] = proton.state_of(delivery);
        settled[count] = proton.is_settled(delivery);
        count++;
        proton.pop(collector);
    }
    return count;
}

/* Say `state` of each, if it is not 0, and then forget it, if it is to be settled. */
void update_deliveries(void *deliveries, int count, uint64_t state, bool settle) {
    pn_delivery_t **each = deliveries;
    for (int at = 0; at < count; at++) {
        if (state) proton.update(each[at], state);
        if (settle) proton.settle(each[at]);
    }
}

/* Whether the next message lies within the `size` bytes of all. */
static bool is_within(size_t at, size_t size, int32_t length) {
    return length >= 0 && (size_t)length <= size - at;
}

static pn_delivery_t *send_one(pn_link_t *link, pn_bytes_t tag, const char *data, int32_t length) {
    pn_delivery_t *delivery = proton.new_delivery(link, tag);
    if (!delivery) return NULL;
    proton.write(link, data, (size_t)length);
    proton.advance(link);
    return delivery;
}

/* Send messages that lie in `data`, one behind the other, with these tags (pn_bytes_t, which Proton copies).
 * Returns how many: fewer than `count` where one is beyond `size`, or Proton has no memory. */
int send_messages(void *link, void *tags, const char *data, size_t size, const int32_t *sizes, int count,
                  void *deliveries) {
    const pn_bytes_t *tag = tags;
    pn_delivery_t **out = deliveries;
    size_t at = 0;
    for (int sent = 0; sent < count; sent++) {
        if (!is_within(at, size, sizes[sent])) return sent;
        if (!(out[sent] = send_one(link, tag[sent], data + at, sizes[sent]))) return sent;
        at += (size_t)sizes[sent];
    }
    return count;
}

/* The same with tags that are numbers, ascending from `first`: sixteen hexadecimal digits. */
int send_numbered_messages(void *link, uint64_t first, const char *data, size_t size, const int32_t *sizes, int count,
                           void *deliveries) {
    static const char digits[] = "0123456789abcdef";
    pn_delivery_t **out = deliveries;
    char text[NUMBER_DIGITS];
    size_t at = 0;
    for (int sent = 0; sent < count; sent++) {
        uint64_t number = first + (uint64_t)sent;
        for (int place = NUMBER_DIGITS; place--; number >>= 4) text[place] = digits[number & 15];
        if (!is_within(at, size, sizes[sent])) return sent;
        if (!(out[sent] = send_one(link, (pn_bytes_t){NUMBER_DIGITS, text}, data + at, sizes[sent]))) return sent;
        at += (size_t)sizes[sent];
    }
    return count;
}
