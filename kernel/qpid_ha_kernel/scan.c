/* Going through blocks of a journal, and the records in them, where they lie.
 *
 * What holds: nothing outside of `data[0..length)` is read, nothing outside of the given room is written, and each loop
 * gets on by a header at least. A block is reported only when its header's checksum is right and, with QH_SCAN_CHECKS,
 * that of its data; and then only if its records fill it and each is of a kind and version that the caller knows. What
 * else there is, is left to the caller, who has words for it:
 *
 *   why               `end` is where              `needed`
 *   QH_SCAN_ENDS      the data end                0
 *   QH_SCAN_MORE      a block begins of which     bytes from `end` on; more than there are
 *                     the data have not all
 *   QH_SCAN_BLOCK     there is no good block      0
 *   QH_SCAN_RECORDS   a good block begins with    0
 *                     records that do not add up
 *   QH_SCAN_FULL      there is no room for what   0
 *                     comes
 */

#define QH_FILE_SEAL 12
#define QH_BLOCK_HEADER 64
#define QH_BLOCK_KINDS 4
#define QH_EVENTS 1
#define QH_RECORD_HEADER 20
#define QH_LOCAL_BASE (UINT64_C(1) << 63)

static inline uint16_t qh_u16(const uint8_t *at) { uint16_t value; memcpy(&value, at, 2); return value; }
static inline uint32_t qh_u32(const uint8_t *at) { uint32_t value; memcpy(&value, at, 4); return value; }
static inline uint64_t qh_u64(const uint8_t *at) { uint64_t value; memcpy(&value, at, 8); return value; }

#if !defined(__BYTE_ORDER__) || __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the kernel reads numbers as they lie: little-endian machines only"
#endif

/* CRC-32 as zlib has it (reflected 0x04c11db7), eight bytes a step. */
static uint32_t qh_crc_table[8][256];

__attribute__((constructor)) static void qh_crc_fill(void)
{
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? 0xedb88320u : 0);
        qh_crc_table[0][byte] = crc;
    }
    for (int step = 1; step < 8; step++)
        for (int byte = 0; byte < 256; byte++)
            qh_crc_table[step][byte] =
                qh_crc_table[step - 1][byte] >> 8 ^ qh_crc_table[0][qh_crc_table[step - 1][byte] & 0xff];
}

static uint32_t qh_crc_plain(const uint8_t *data, int64_t length, uint32_t crc)
{
    for (; length >= 8; data += 8, length -= 8) {
        uint32_t low = crc ^ qh_u32(data), high = qh_u32(data + 4);
        crc = qh_crc_table[7][low & 0xff] ^ qh_crc_table[6][low >> 8 & 0xff] ^ qh_crc_table[5][low >> 16 & 0xff] ^
              qh_crc_table[4][low >> 24] ^ qh_crc_table[3][high & 0xff] ^ qh_crc_table[2][high >> 8 & 0xff] ^
              qh_crc_table[1][high >> 16 & 0xff] ^ qh_crc_table[0][high >> 24];
    }
    for (; length > 0; data++, length--)
        crc = crc >> 8 ^ qh_crc_table[0][(crc ^ *data) & 0xff];
    return crc;
}

#if defined(__x86_64__)
#include <immintrin.h>

/* By carry-less multiplication: V. Gopal and others, "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ",
 * Intel 2009, with the constants for the reflected polynomial. At least 64 bytes, and a multiple of 16. */
__attribute__((target("pclmul,sse4.1"))) static __m128i qh_fold(__m128i sum, __m128i by, __m128i next)
{
    __m128i low = _mm_clmulepi64_si128(sum, by, 0x00), high = _mm_clmulepi64_si128(sum, by, 0x11);
    return _mm_xor_si128(_mm_xor_si128(low, high), next);
}

__attribute__((target("pclmul,sse4.1"))) static uint32_t qh_crc_folded(const uint8_t *data, int64_t length, uint32_t crc)
{
    const __m128i by_64 = _mm_set_epi64x(0x01c6e41596, 0x0154442bd4), by_16 = _mm_set_epi64x(0x00ccaa009e, 0x01751997d0);
    const __m128i by_8 = _mm_set_epi64x(0, 0x0163cd6124), barrett = _mm_set_epi64x(0x01f7011641, 0x01db710641);
    const __m128i low_words = _mm_setr_epi32(~0, 0, ~0, 0);
    const __m128i *at = (const __m128i *)data;
    __m128i one = _mm_xor_si128(_mm_loadu_si128(at), _mm_cvtsi32_si128((int)crc));
    __m128i two = _mm_loadu_si128(at + 1), three = _mm_loadu_si128(at + 2), four = _mm_loadu_si128(at + 3);
    for (at += 4, length -= 64; length >= 64; at += 4, length -= 64) {
        one = qh_fold(one, by_64, _mm_loadu_si128(at));
        two = qh_fold(two, by_64, _mm_loadu_si128(at + 1));
        three = qh_fold(three, by_64, _mm_loadu_si128(at + 2));
        four = qh_fold(four, by_64, _mm_loadu_si128(at + 3));
    }
    one = qh_fold(one, by_16, two);
    one = qh_fold(one, by_16, three);
    one = qh_fold(one, by_16, four);
    for (; length >= 16; at++, length -= 16)
        one = qh_fold(one, by_16, _mm_loadu_si128(at));
    one = _mm_xor_si128(_mm_srli_si128(one, 8), _mm_clmulepi64_si128(one, by_16, 0x10));
    two = _mm_srli_si128(one, 4);
    one = _mm_xor_si128(_mm_clmulepi64_si128(_mm_and_si128(one, low_words), by_8, 0x00), two);
    two = _mm_clmulepi64_si128(_mm_and_si128(one, low_words), barrett, 0x10);
    two = _mm_clmulepi64_si128(_mm_and_si128(two, low_words), barrett, 0x00);
    return (uint32_t)_mm_extract_epi32(_mm_xor_si128(one, two), 1);
}
#endif

/* As `zlib.crc32(data, crc)`. */
uint32_t qh_crc32(const uint8_t *data, int64_t length, uint32_t crc)
{
    crc = ~crc;
#if defined(__x86_64__)
    if (length >= 64 && __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1")) {
        int64_t folded = length & ~INT64_C(15);
        crc = qh_crc_folded(data, folded, crc);
        data += folded;
        length -= folded;
    }
#endif
    return ~qh_crc_plain(data, length, crc);
}

/* The header at `at`, of which there are 64 bytes, and its data's checksum; false: it is no good one of that file. */
static bool qh_read_header(const uint8_t *at, uint32_t number, qh_block *block, uint32_t *checksum)
{
    if (memcmp(at, "QhBk", 4) != 0 || qh_u32(at + 4) != number)
        return false;
    if (qh_u32(at + 8) != qh_crc32(at + QH_FILE_SEAL, QH_BLOCK_HEADER - QH_FILE_SEAL, number))
        return false;
    block->length = qh_u32(at + 12);
    *checksum = qh_u32(at + 16);
    block->kind = at[20];
    block->left_out = qh_u32(at + 24);
    block->age_ms = qh_u32(at + 28);
    block->first_lsn = qh_u64(at + 32);
    block->last_lsn = qh_u64(at + 40);
    block->committed_lsn = qh_u64(at + 48);
    block->synced = qh_u64(at + 56);
    block->records = 0;
    return block->kind >= QH_EVENTS && block->kind <= QH_BLOCK_KINDS;
}

/* Whether anything in it may count, as far as its header tells: as `Scan._is_wanted` has it. */
static bool qh_is_wanted(const qh_block *block, uint64_t first_lsn, uint64_t last_lsn, int32_t flags)
{
    if (block->kind != QH_EVENTS)
        return false;
    if (block->first_lsn >= QH_LOCAL_BASE || flags & QH_SCAN_SNAPSHOT)
        return true;
    uint64_t first = block->first_lsn > first_lsn ? block->first_lsn : first_lsn;
    return first <= (block->last_lsn < last_lsn ? block->last_lsn : last_lsn);
}

/* The good blocks in `data` from `begin` on that may have what is wanted, and the records in them. `known`: 256 bytes,
 * 1 for each kind of record that there is. Empty blocks are passed over. */
void qh_scan_blocks(const uint8_t *data, int64_t length, int64_t begin, uint32_t number, uint64_t first_lsn,
                    uint64_t last_lsn, int32_t flags, const uint8_t *known, qh_block *blocks, int64_t blocks_room,
                    int64_t *offsets, int64_t *lsns, int64_t *sizes, uint8_t *kinds, int64_t records_room,
                    qh_scanned *scanned)
{
    int64_t at = begin, block_count = 0, record_count = 0;
    scanned->why = QH_SCAN_ENDS;
    scanned->needed = 0;
    while (at < length) {
        qh_block block;
        uint32_t checksum;
        if (length - at < QH_BLOCK_HEADER) {
            scanned->why = QH_SCAN_MORE;
            scanned->needed = QH_BLOCK_HEADER;
            break;
        }
        if (!qh_read_header(data + at, number, &block, &checksum)) {
            scanned->why = QH_SCAN_BLOCK;
            break;
        }
        block.offset = at;
        int64_t place = at + QH_BLOCK_HEADER, end = place + block.length, count = record_count;
        if (end > length) {
            scanned->why = QH_SCAN_MORE;
            scanned->needed = end - at;
            break;
        }
        if (qh_is_wanted(&block, first_lsn, last_lsn, flags)) {
            if (flags & QH_SCAN_CHECKS && qh_crc32(data + place, block.length, 0) != checksum) {
                scanned->why = QH_SCAN_BLOCK;
                break;
            }
            if (!block.length) {
                at = end;
                continue;
            }
            if (block_count == blocks_room) {
                scanned->why = QH_SCAN_FULL;
                break;
            }
            while (end - place >= QH_RECORD_HEADER && count < records_room) {
                const uint8_t *record = data + place;
                uint32_t size = qh_u32(record);
                uint8_t kind = record[16];
                if (size < QH_RECORD_HEADER || size > end - place || !known[kind] || record[17] > 1 ||
                    qh_u16(record + 18) != 1)
                    break;
                offsets[count] = place;
                lsns[count] = (int64_t)qh_u64(record + 8);
                sizes[count] = size;
                kinds[count] = kind;
                count++;
                place += size;
            }
            if (place != end) {
                scanned->why = count == records_room ? QH_SCAN_FULL : QH_SCAN_RECORDS;
                break;
            }
            block.records = (uint32_t)(count - record_count);
            blocks[block_count++] = block;
            record_count = count;
        }
        at = end;
    }
    scanned->blocks = block_count;
    scanned->records = record_count;
    scanned->end = at;
}

/* How many bytes the length of a value with this constructor takes, and how many follow for sure: AMQP 1.0 section 1.2. */
static int64_t qh_value_end(const uint8_t *data, int64_t at, int64_t end)
{
    static const uint8_t fixed[16] = {0, 0, 0, 0, 0, 1, 2, 4, 8, 16, 0, 0, 0, 0, 0, 0};
    if (at >= end || data[at] < 0x40)
        return -1;
    uint8_t group = data[at++] >> 4;
    if (group < 0xa)
        return at + fixed[group] <= end ? at + fixed[group] : -1;
    int64_t width = group & 1 ? 4 : 1;
    if (end - at < width)
        return -1;
    int64_t size = width == 1 ? data[at]
                              : (int64_t)data[at] << 24 | (int64_t)data[at + 1] << 16 | (int64_t)data[at + 2] << 8 | data[at + 3];
    return end - at - width >= size ? at + width + size : -1;
}

/* Where the body of each message lies, of `count` that are at `starts` to `ends` of `data`: what is within its section
 * of data, or within its value where that is text or bytes; else the section as it is. `present` is 0 where it has none.
 * Returns the index of the first message that is not as usual, which is left to others: several sections of a body, a
 * descriptor that is spelled otherwise, or what is no message; `count`: there is none. */
int64_t qh_find_bodies(const uint8_t *data, int64_t length, const int64_t *starts, const int64_t *ends, int64_t count,
                       int64_t *body_starts, int64_t *body_ends, uint8_t *present)
{
    for (int64_t index = 0; index < count; index++) {
        int64_t at = starts[index], end = ends[index];
        body_starts[index] = body_ends[index] = present[index] = 0;
        if (at < 0 || end > length)
            return index;
        while (at < end) {
            if (end - at < 4 || data[at] != 0 || data[at + 1] != 0x53 || data[at + 2] < 0x70 || data[at + 2] > 0x78)
                return index;
            uint8_t code = data[at + 2], type = data[at + 3];
            int64_t following = qh_value_end(data, at + 3, end);
            if (following < 0)
                return index;
            if (code >= 0x75 && code <= 0x77) {
                if (present[index])
                    return index;
                bool is_plain = code != 0x76 && (type == 0xa0 || type == 0xb0 || type == 0xa1 || type == 0xb1);
                body_starts[index] = is_plain ? at + 4 + (type >= 0xb0 ? 4 : 1) : at;
                body_ends[index] = following;
                present[index] = 1;
            }
            at = following;
        }
    }
    return count;
}
