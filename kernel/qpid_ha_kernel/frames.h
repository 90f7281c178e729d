int64_t walk_usual_frames(const uint8_t *data, int64_t length, int64_t at, bool *has_attach);
