int proton_calls_known(const uintptr_t *addresses, size_t count);
int receive_deliveries(void *collector, void *link, char *buffer, size_t room, void *deliveries, int32_t *ends,
                       uint64_t *states, bool *settled, int most, int32_t *result);
int take_answers(void *collector, void *link, void *deliveries, uint64_t *states, bool *settled, int most);
void update_deliveries(void *deliveries, int count, uint64_t state, bool settle);
int send_messages(void *link, void *tags, const char *data, size_t size, const int32_t *sizes, int count,
                  void *deliveries);
int send_numbered_messages(void *link, uint64_t first, const char *data, size_t size, const int32_t *sizes, int count,
                           void *deliveries);
#define RECEIVED_END 0
#define RECEIVED_UNUSUAL 1
#define RECEIVED_FULL 2
