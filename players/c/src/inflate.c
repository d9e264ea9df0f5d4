/* Unpacks zlib streams (RFC 1950, RFC 1951) of untrusted files. */
#include "internal.h"

typedef struct bit_reader {
    const uint8_t *in;
    size_t left; /* bytes of `in` */
    uint8_t *out;
    size_t size, at;      /* bytes of `out`, and how many are written */
    uint64_t bits;        /* read but not consumed, the next bit lowest */
    int count, truncated; /* number of these; 1 once there were too few */
} bit_reader;

static uint32_t read_bits(bit_reader *b, int n) {
    for (; b->count < n && b->left > 0; b->left--, b->count += 8)
        b->bits |= (uint64_t)*b->in++ << b->count;
    if (b->count < n) b->truncated = 1;
    if (b->truncated) return 0;
    uint32_t value = (uint32_t)(b->bits & ((1u << n) - 1));
    b->bits >>= n;
    b->count -= n;
    return value;
}

typedef struct huffman {  /* a canonical code */
    uint16_t count[16];   /* codes of each length */
    uint16_t symbol[288]; /* in the order of their codes */
} huffman;

/* Returns 0 if the lengths are no code. */
static int build_huffman(huffman *h, const uint8_t *lengths, int n) {
    uint16_t at[16] = {0};
    int left = 1;
    memset(h->count, 0, sizeof h->count);
    for (int i = 0; i < n; i++) h->count[lengths[i]]++;
    for (int i = 1; i < 16; i++) {
        left = 2 * left - h->count[i];
        if (left < 0) return 0;
    }
    for (int i = 1; i < 15; i++) at[i + 1] = (uint16_t)(at[i] + h->count[i]);
    for (int i = 0; i < n; i++)
        if (lengths[i] != 0) h->symbol[at[lengths[i]]++] = (uint16_t)i;
    return 1;
}

/* Returns the next symbol, or -1 if the bits are no code. */
static int read_symbol(bit_reader *b, const huffman *h) {
    int code = 0, first = 0, index = 0;
    for (int length = 1; length < 16; length++) {
        code = 2 * code + (int)read_bits(b, 1);
        if (code - first < h->count[length]) return h->symbol[index + code - first];
        index += h->count[length];
        first = (first + h->count[length]) * 2;
    }
    return -1;
}

/* Reads the code lengths of a block with codes of its own. They are packed with a code themselves,
 * whose symbols 16 to 18 repeat a length. */
static int read_lengths(bit_reader *b, uint8_t lengths[320], int *literals, int *distances) {
    static const uint8_t order[19] = {16, 17, 18, 0, 8,  7, 9,  6, 10, 5,
                                      11, 4,  12, 3, 13, 2, 14, 1, 15};
    static const uint8_t least_repeat[3] = {3, 3, 11}, extra_bits[3] = {2, 3, 7};
    uint8_t packed[19] = {0};
    huffman codes;
    *literals = (int)read_bits(b, 5) + 257;
    *distances = (int)read_bits(b, 5) + 1;
    int packed_count = (int)read_bits(b, 4) + 4, count = *literals + *distances;
    for (int i = 0; i < packed_count; i++) packed[order[i]] = (uint8_t)read_bits(b, 3);
    if (*literals > 286 || *distances > 30 || !build_huffman(&codes, packed, 19)) return 0;
    for (int i = 0; i < count;) {
        int symbol = read_symbol(b, &codes), length = 0, repeat = 1;
        if (symbol < 0 || (symbol == 16 && i == 0)) return 0;
        if (symbol < 16) {
            length = symbol;
        } else {
            if (symbol == 16) length = lengths[i - 1];
            repeat = least_repeat[symbol - 16] + (int)read_bits(b, extra_bits[symbol - 16]);
        }
        if (i + repeat > count) return 0;
        memset(lengths + i, length, (size_t)repeat);
        i += repeat;
    }
    return lengths[256] != 0;
}

/* Returns the length (per = 4) or distance (per = 2), less its minimum, of a symbol and the extra
 * bits behind it. */
static size_t read_extended(bit_reader *b, int symbol, int per) {
    if (symbol < 2 * per) return (size_t)symbol;
    int extra = symbol / per - 1;
    int high = (per + symbol % per) << extra;
    return (size_t)high + read_bits(b, extra);
}

static int inflate_coded(bit_reader *b, int has_own_codes) {
    huffman literals, distances;
    uint8_t lengths[320];
    int literal_count = 288, distance_count = 32;
    if (has_own_codes) {
        if (!read_lengths(b, lengths, &literal_count, &distance_count)) return 0;
    } else {
        memset(lengths, 8, 288);
        memset(lengths + 144, 9, 256 - 144);
        memset(lengths + 256, 7, 280 - 256);
        memset(lengths + 288, 5, 32);
    }
    if (!build_huffman(&literals, lengths, literal_count) ||
        !build_huffman(&distances, lengths + literal_count, distance_count))
        return 0;
    for (;;) {
        int symbol = read_symbol(b, &literals);
        if (symbol == 256) return 1;
        if (symbol < 0 || symbol > 285 || b->at == b->size) return 0;
        if (symbol < 256) {
            b->out[b->at++] = (uint8_t)symbol;
            continue;
        }
        size_t length = symbol == 285 ? 258 : 3 + read_extended(b, symbol - 257, 4);
        symbol = read_symbol(b, &distances);
        if (symbol < 0 || symbol > 29) return 0;
        size_t distance = 1 + read_extended(b, symbol, 2);
        if (b->truncated || distance > b->at || length > b->size - b->at) return 0;
        for (; length > 0; length--, b->at++) b->out[b->at] = b->out[b->at - distance];
    }
}

static int inflate_stored(bit_reader *b) {
    read_bits(b, b->count % 8);
    uint32_t length = read_bits(b, 16), inverse = read_bits(b, 16);
    if (b->truncated || (length ^ inverse) != 0xFFFF || length > b->size - b->at) return 0;
    for (; length > 0; length--) b->out[b->at++] = (uint8_t)read_bits(b, 8);
    return !b->truncated;
}

static int has_adler32(const uint8_t *data, size_t size, const uint8_t sum[4]) {
    uint32_t low = 1, high = 0;
    for (size_t i = 0; i < size; i++) {
        low = (low + data[i]) % 65521;
        high = (high + low) % 65521;
    }
    const uint8_t computed[4] = {(uint8_t)(high >> 8), (uint8_t)high, (uint8_t)(low >> 8),
                                 (uint8_t)low};
    return memcmp(computed, sum, 4) == 0;
}

int cml__inflate(const uint8_t *in, size_t packed, uint8_t *out, size_t size) {
    bit_reader b = {.in = in, .left = packed, .out = out, .size = size};
    uint32_t method = read_bits(&b, 8), flags = read_bits(&b, 8), is_last = 0;
    if (method % 16 != 8 || method > 127 || flags & 32 || (method << 8 | flags) % 31 != 0) return 0;
    while (!is_last) {
        is_last = read_bits(&b, 1);
        uint32_t kind = read_bits(&b, 2); /* 0: stored, 1: fixed codes, 2: codes of its own */
        if (b.truncated || kind > 2) return 0;
        if (kind == 0 ? !inflate_stored(&b) : !inflate_coded(&b, kind == 2)) return 0;
    }
    return !b.truncated && b.at == size && b.left == 4 && has_adler32(out, size, b.in);
}
