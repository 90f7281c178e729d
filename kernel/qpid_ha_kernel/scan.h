/* Blocks and records of a journal where they lie in memory; docs/protocol.md has the layout, scan.c what holds. */

#define QH_SCAN_ENDS 0
#define QH_SCAN_MORE 1
#define QH_SCAN_BLOCK 2
#define QH_SCAN_RECORDS 3
#define QH_SCAN_FULL 4

#define QH_SCAN_CHECKS 1
#define QH_SCAN_SNAPSHOT 2

typedef struct {
    int64_t offset;
    int64_t length;
    uint64_t first_lsn;
    uint64_t last_lsn;
    uint64_t committed_lsn;
    uint64_t synced;
    uint32_t left_out;
    uint32_t age_ms;
    uint32_t kind;
    uint32_t records;
} qh_block;

typedef struct {
    int64_t blocks;
    int64_t records;
    int64_t end;
    int64_t needed;
    int32_t why;
    int32_t unused;
} qh_scanned;

uint32_t qh_crc32(const uint8_t *data, int64_t length, uint32_t crc);
void qh_scan_blocks(const uint8_t *data, int64_t length, int64_t begin, uint32_t number, uint64_t first_lsn,
                    uint64_t last_lsn, int32_t flags, const uint8_t *known, qh_block *blocks, int64_t blocks_room,
                    int64_t *offsets, int64_t *lsns, int64_t *sizes, uint8_t *kinds, int64_t records_room,
                    qh_scanned *scanned);
int64_t qh_find_bodies(const uint8_t *data, int64_t length, const int64_t *starts, const int64_t *ends, int64_t count,
                       int64_t *body_starts, int64_t *body_ends, uint8_t *present);
