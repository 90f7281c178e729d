/* Going through AMQP frames as they come from a peer (AMQP 1.0 section 2.3.1), without a look into most of them. */

enum {
    FRAME_DATA = 8,
    TYPE_AMQP = 0,
    TYPE_SASL = 1,
    DESCRIBED = 0x00,
    SMALL_ULONG = 0x53,
    ATTACH = 0x12,
    TRANSFER = 0x14,
    LONGEST_TAG = 32,
    FEW_FIELDS = 3 /* of a transfer: there is no message-format among them */
};

/* Where the value ends that begins at `at`, if it is null, 0 or a uint; -1: it is not, or not all of it is there.
 * `is_zero`: it has to be null or 0. */
static int64_t after_uint(const uint8_t *data, int64_t length, int64_t at, bool may_be_null, bool is_zero) {
    if (at >= length) return -1;
    switch (data[at]) {
    case 0x40:
        return may_be_null ? at + 1 : -1;
    case 0x43:
        return at + 1;
    case 0x52:
        if (length - at < 2 || (is_zero && data[at + 1])) return -1;
        return at + 2;
    case 0x70:
        if (length - at < 5) return -1;
        if (is_zero && (data[at + 1] | data[at + 2] | data[at + 3] | data[at + 4])) return -1;
        return at + 5;
    default:
        return -1;
    }
}

/* Whether the list of a transfer that begins at `at` surely has no message-format but 0 (section 2.7.5). */
static bool has_no_format(const uint8_t *data, int64_t length, int64_t at) {
    if (length - at < 3) return false;
    if (data[at] == 0xc0) {
        if (data[at + 2] <= FEW_FIELDS) return true;
        at += 3;
    } else if (data[at] == 0xd0 && length - at >= 9) {
        at += 9;
    } else {
        return false;
    }
    if ((at = after_uint(data, length, at, false, false)) < 0) return false; /* handle */
    if ((at = after_uint(data, length, at, true, false)) < 0) return false;  /* delivery-id */
    if (at >= length) return false;
    if (data[at] == 0x40) {
        at += 1;
    } else { /* delivery-tag */
        if (data[at] != 0xa0 || length - at < 2 || data[at + 1] > LONGEST_TAG) return false;
        if (length - at - 2 < data[at + 1]) return false;
        at += 2 + data[at + 1];
    }
    return after_uint(data, length, at, true, true) >= 0;
}

/* Whether what begins at `at` is a frame that surely begins no message with a format: `_USUAL` in message_format.py
 * says the same as a regular expression. */
static bool is_usual(const uint8_t *data, int64_t length, int64_t at) {
    int64_t left = length - at;
    if (left < 6 || data[at + 4] != 2) return false;
    if (data[at + 5] == TYPE_SASL) return true;
    if (left < FRAME_DATA + 3 || data[at + 5] != TYPE_AMQP) return false;
    const uint8_t *body = data + at + FRAME_DATA;
    if (body[0] != DESCRIBED || body[1] != SMALL_ULONG) return false;
    return body[2] != TRANSFER || has_no_format(data, length, at + FRAME_DATA + 3);
}

/* From the frame that begins at `at` on, the beginning of the first one that is not a usual one, or that has not come
 * yet: then it is `length` or more. `has_attach`: one of those that were passed is an attach. */
int64_t walk_usual_frames(const uint8_t *data, int64_t length, int64_t at, bool *has_attach) {
    *has_attach = false;
    while (at >= 0 && at < length && is_usual(data, length, at)) {
        const uint8_t *head = data + at;
        uint32_t size = (uint32_t)head[0] << 24 | (uint32_t)head[1] << 16 | (uint32_t)head[2] << 8 | head[3];
        if (head[5] == TYPE_AMQP && head[FRAME_DATA + 2] == ATTACH) *has_attach = true;
        at += size ? size : 1;
    }
    return at;
}
