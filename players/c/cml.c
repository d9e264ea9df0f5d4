/* Plays cooked networks: see cml.h, and docs/players_c.md. Parts: memory and errors; SHA-256 and
 * inflate; the file; costs; the decision of a frame; jobs; learning; the device. */
#if !defined(_POSIX_C_SOURCE) && !defined(_WIN32)
#define _POSIX_C_SOURCE 200112L
#endif
#include "cml.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------ memory and errors */

typedef struct block { /* before every piece of memory */
    struct block *next, *before;
    size_t bytes, unused;
} block;

typedef struct home { /* where memory comes from, all that was taken, and what was made so far */
    cml_allocator hook;
    block *blocks;
    int is_short; /* some memory was not there */
    uint64_t host_blocks, buffers, bind_groups, pipelines;
} home;

/* Zeros, or NULL. */
static void *taken(home *from, uint64_t count, size_t size) {
    size_t bytes = sizeof(block) + (size_t)count * size;
    block *b = NULL;
    if (size == 0 || count <= (SIZE_MAX - sizeof *b) / size)
        b = from->hook.take != NULL ? from->hook.take(from->hook.user, bytes) : malloc(bytes);
    if (b == NULL) {
        from->is_short = 1;
        return NULL;
    }
    memset(b, 0, bytes);
    b->bytes = bytes;
    b->next = from->blocks;
    if (b->next != NULL) b->next->before = b;
    from->blocks = b;
    from->host_blocks++;
    return b + 1;
}

static void given_back(home *to, void *memory) {
    block *b = memory == NULL ? NULL : (block *)memory - 1;
    if (b == NULL) return;
    if (b->next != NULL) b->next->before = b->before;
    if (b->before != NULL)
        b->before->next = b->next;
    else
        to->blocks = b->next;
    if (to->hook.give_back != NULL)
        to->hook.give_back(to->hook.user, b, b->bytes);
    else
        free(b);
}

static void all_given_back(home *to) {
    while (to->blocks != NULL) given_back(to, to->blocks + 1);
}

#if defined(__GNUC__)
__attribute__((format(printf, 3, 4)))
#endif
static cml_status fail(cml_error *error, cml_status status, const char *format, ...) {
    if (error != NULL) {
        va_list values;
        error->status = status;
        va_start(values, format);
        vsnprintf(error->text, sizeof error->text, format, values);
        va_end(values);
    }
    return status;
}

#define TEXT(t) (int)((t).length < 200 ? (t).length : 200), (t).data

static int same(double a, double b) { /* is meant: to the bit */
    return !(a < b) && !(b < a);
}

/* ------------------------------------------------------------------ SHA-256 (FIPS 180-4) */

static const uint32_t sha_k[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static uint32_t turned(uint32_t x, int by) { return x >> by | x << (32 - by); }

static void sha_block(uint32_t state[8], const uint8_t *p) {
    uint32_t w[64], v[8];
    int i;
    for (i = 0; i < 16; i++, p += 4)
        w[i] = (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
    for (; i < 64; i++) {
        uint32_t a = w[i - 15], b = w[i - 2];
        w[i] = w[i - 16] + (turned(a, 7) ^ turned(a, 18) ^ a >> 3) + w[i - 7] +
               (turned(b, 17) ^ turned(b, 19) ^ b >> 10);
    }
    memcpy(v, state, sizeof v);
    for (i = 0; i < 64; i++) {
        uint32_t e = v[4], a = v[0];
        uint32_t x = v[7] + (turned(e, 6) ^ turned(e, 11) ^ turned(e, 25)) +
                     ((e & v[5]) ^ (~e & v[6])) + sha_k[i] + w[i];
        uint32_t y = (turned(a, 2) ^ turned(a, 13) ^ turned(a, 22)) +
                     ((a & v[1]) ^ (a & v[2]) ^ (v[1] & v[2]));
        memmove(v + 1, v, 7 * sizeof v[0]);
        v[4] += x;
        v[0] = x + y;
    }
    for (i = 0; i < 8; i++) state[i] += v[i];
}

static void sha256(const uint8_t *data, size_t size, uint8_t digest[32]) {
    uint32_t state[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                         0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    uint8_t tail[128] = {0};
    size_t whole = size / 64 * 64, rest = size - whole, end = rest < 56 ? 64 : 128;
    for (size_t i = 0; i < whole; i += 64) sha_block(state, data + i);
    if (rest > 0) memcpy(tail, data + whole, rest);
    tail[rest] = 0x80;
    for (size_t i = 0; i < 8; i++) tail[end - 1 - i] = (uint8_t)((uint64_t)size * 8 >> 8 * i);
    for (size_t i = 0; i < end; i += 64) sha_block(state, tail + i);
    for (size_t i = 0; i < 32; i++) digest[i] = (uint8_t)(state[i / 4] >> (24 - 8 * (i % 4)));
}

/* ------------------------------------------------------------------ zlib (RFC 1950, 1951) */

typedef struct bits {
    const uint8_t *in;
    size_t left;
    uint64_t held; /* bits that were read and not used, the next one lowest */
    int count;
    int missing; /* there were too few */
} bits;

static uint32_t next_bits(bits *b, int n) {
    uint32_t found;
    while (b->count < n) {
        if (b->left == 0) {
            b->missing = 1;
            return 0;
        }
        b->held |= (uint64_t)*b->in++ << b->count;
        b->left--;
        b->count += 8;
    }
    found = (uint32_t)(b->held & ((1u << n) - 1));
    b->held >>= n;
    b->count -= n;
    return found;
}

typedef struct huffman { /* canonical: how many codes of each length, and their symbols in order */
    uint16_t count[16], symbol[288];
} huffman;

/* 0 where the lengths make no code. */
static int huffman_of(huffman *h, const uint8_t *lengths, int n) {
    uint16_t at[16];
    int left = 1;
    memset(h->count, 0, sizeof h->count);
    for (int i = 0; i < n; i++) h->count[lengths[i]]++;
    for (int i = 1; i < 16; i++) {
        left = 2 * left - h->count[i];
        if (left < 0) return 0;
    }
    /* an incomplete code is only allowed where there is one code of one bit, or none at all */
    if (left > 0 && n - h->count[0] > 1) return 0;
    at[1] = 0;
    for (int i = 1; i < 15; i++) at[i + 1] = (uint16_t)(at[i] + h->count[i]);
    for (int i = 0; i < n; i++)
        if (lengths[i] != 0) h->symbol[at[lengths[i]]++] = (uint16_t)i;
    return 1;
}

static int next_symbol(bits *b, const huffman *h) {
    int length, code = 0, first = 0, index = 0;
    for (length = 1; length < 16; length++) {
        code |= (int)next_bits(b, 1);
        if (b->missing) return -1;
        if (code - first < h->count[length]) return h->symbol[index + code - first];
        index += h->count[length];
        first = (first + h->count[length]) * 2;
        code *= 2;
    }
    return -1;
}

static int dynamic_codes(bits *b, huffman *literals, huffman *distances) {
    static const uint8_t order[19] = {16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15};
    uint8_t lengths[320] = {0};
    int nl = (int)next_bits(b, 5) + 257, nd = (int)next_bits(b, 5) + 1, nc = (int)next_bits(b, 4) + 4;
    int i = 0;
    huffman codes;
    if (nl > 286 || nd > 30) return 0;
    for (i = 0; i < nc; i++) lengths[order[i]] = (uint8_t)next_bits(b, 3);
    if (b->missing || !huffman_of(&codes, lengths, 19)) return 0;
    memset(lengths, 0, sizeof lengths);
    for (i = 0; i < nl + nd;) {
        int symbol = next_symbol(b, &codes), repeat = 1, value = symbol;
        if (symbol < 0) return 0;
        if (symbol >= 16) {
            if (symbol == 16 && i == 0) return 0;
            value = symbol == 16 ? lengths[i - 1] : 0;
            repeat = symbol == 16 ? 3 + (int)next_bits(b, 2)
                                  : symbol == 17 ? 3 + (int)next_bits(b, 3) : 11 + (int)next_bits(b, 7);
        }
        if (b->missing || i + repeat > nl + nd) return 0;
        while (repeat-- > 0) lengths[i++] = (uint8_t)value;
    }
    return lengths[256] != 0 && huffman_of(literals, lengths, nl) && huffman_of(distances, lengths + nl, nd);
}

static void fixed_codes(huffman *literals, huffman *distances) {
    uint8_t lengths[288];
    for (int i = 0; i < 288; i++) lengths[i] = i < 144 ? 8 : i < 256 ? 9 : i < 280 ? 7 : 8;
    huffman_of(literals, lengths, 288);
    memset(lengths, 5, 30);
    memset(distances, 0, sizeof *distances);
    for (int i = 0; i < 30; i++) distances->symbol[i] = (uint16_t)i;
    distances->count[5] = 30;
}

static int coded_block(bits *b, const huffman *literals, const huffman *distances, uint8_t *out,
                       size_t size, size_t *at) {
    for (;;) {
        int symbol = next_symbol(b, literals), extra, length;
        size_t distance;
        if (symbol < 0) return 0;
        if (symbol == 256) return 1;
        if (symbol < 256) {
            if (*at == size) return 0;
            out[(*at)++] = (uint8_t)symbol;
            continue;
        }
        symbol -= 257;
        if (symbol > 28) return 0;
        extra = symbol < 8 || symbol == 28 ? 0 : symbol / 4 - 1;
        length = symbol == 28 ? 258 : symbol < 8 ? symbol + 3 : ((4 + symbol % 4) << extra) + 3;
        length += (int)next_bits(b, extra);
        symbol = next_symbol(b, distances);
        if (symbol < 0 || symbol > 29) return 0;
        extra = symbol < 4 ? 0 : symbol / 2 - 1;
        distance = (symbol < 4 ? (size_t)symbol : (size_t)(2 + symbol % 2) << extra) + 1;
        distance += next_bits(b, extra);
        if (b->missing || distance > *at || (size_t)length > size - *at) return 0;
        for (; length > 0; length--, (*at)++) out[*at] = out[*at - distance];
    }
}

static int stored_block(bits *b, uint8_t *out, size_t size, size_t *at) {
    uint32_t length, inverse;
    next_bits(b, b->count % 8);
    length = next_bits(b, 16);
    inverse = next_bits(b, 16);
    if (b->missing || (length ^ inverse) != 0xFFFF || length > size - *at) return 0;
    for (; length > 0; length--) {
        out[(*at)++] = (uint8_t)next_bits(b, 8);
        if (b->missing) return 0;
    }
    return 1;
}

/* Whether `in` is one zlib stream of exactly `size` bytes, which are in `out` then. */
static int unpacked(const uint8_t *in, size_t packed, uint8_t *out, size_t size) {
    bits b = {0};
    huffman literals, distances;
    uint32_t last = 0, sum = 0, one = 1, two = 0;
    size_t at = 0;
    if (packed < 6 || (in[0] & 15) != 8 || in[0] >> 4 > 7 || (in[0] * 256 + in[1]) % 31 != 0 || in[1] & 32)
        return 0;
    b.in = in + 2;
    b.left = packed - 2;
    while (!last) {
        uint32_t kind;
        int good;
        last = next_bits(&b, 1);
        kind = next_bits(&b, 2);
        if (b.missing || kind == 3) return 0;
        if (kind == 0)
            good = stored_block(&b, out, size, &at);
        else {
            if (kind == 1)
                fixed_codes(&literals, &distances);
            else if (!dynamic_codes(&b, &literals, &distances))
                return 0;
            good = coded_block(&b, &literals, &distances, out, size, &at);
        }
        if (!good) return 0;
    }
    next_bits(&b, b.count % 8);
    for (size_t i = 0; i < 4; i++) sum = sum << 8 | next_bits(&b, 8);
    for (size_t i = 0; i < at;) { /* Adler-32; sums of 5552 bytes fit into 32 bits */
        size_t end = at - i < 5552 ? at : i + 5552;
        for (; i < end; i++) {
            one += out[i];
            two += one;
        }
        one %= 65521;
        two %= 65521;
    }
    return !b.missing && at == size && b.left + (size_t)b.count / 8 == 0 && sum == (two << 16 | one);
}

/* ------------------------------------------------------------------ the file (docs/cooked.md) */

enum { HEADER = 64, SECTION = 64, KERNEL = 96, PLAN = 192, STEP = 96, BINDING = 24, TENSOR = 80,
       UPDATE = 48, GUESS = 40, FACTOR = 16, GOLDEN = 64 };
enum { MOST_SECTIONS = 256, MOST_TEXT = 4096, MOST_DEVICES = 64, MOST_FACTORS = 4096, MOST_INPUTS = 64 };
static const uint32_t NONE = 0xFFFFFFFFu;

static uint32_t u32(const uint8_t *p) {
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static uint64_t u64(const uint8_t *p) { return u32(p) | (uint64_t)u32(p + 4) << 32; }

static double f64(const uint8_t *p) {
    uint64_t raw = u64(p);
    double value;
    memcpy(&value, &raw, sizeof value);
    return value;
}

static int is_amount(double value) { return value >= 0 && value <= 1e300; }

static int all_zero(const uint8_t *p, uint64_t size) {
    while (size > 0 && *p == 0) p++, size--;
    return size == 0;
}

typedef struct part { /* a range of the file */
    const uint8_t *data;
    uint64_t size;
} part;

typedef struct file {
    const uint8_t *data;
    uint64_t size;
    uint32_t sections;
    part strings, kernels, code;
    uint32_t kernel_count;
    uint8_t hashed[MOST_SECTIONS]; /* whose hash was checked */
    int only_wgsl;                 /* wgpu-native ends the process for SPIR-V that is none */
    home *memory;
    cml_error *error;
} file;

#define BAD(f, ...) fail((f)->error, CML_ERROR_CORRUPT, "this is no whole cooked file: " __VA_ARGS__)

static const uint8_t *section_row(file *f, uint32_t index) {
    return f->data + HEADER + (uint64_t)SECTION * index;
}

/* The section, with its hash checked; 1 where there is none, -1 where it is damaged. */
static int section(file *f, const char *tag, uint32_t number, part *found) {
    for (uint32_t i = 0; i < f->sections; i++) {
        const uint8_t *row = section_row(f, i);
        char name[9] = {0};
        uint8_t digest[32];
        memcpy(name, row, 8);
        if (strcmp(name, tag) != 0 || u32(row + 24) != number) continue;
        found->data = f->data + u64(row + 8);
        found->size = u64(row + 16);
        if (f->hashed[i]) return 0;
        sha256(found->data, (size_t)found->size, digest);
        f->hashed[i] = memcmp(digest, row + 32, 32) == 0;
        if (f->hashed[i]) return 0;
        BAD(f, "the section '%s' %u is damaged (its SHA-256 is another)", tag, number);
        return -1;
    }
    return 1;
}

static int needed_section(file *f, const char *tag, uint32_t number, part *found) {
    int missing = section(f, tag, number, found);
    if (missing > 0) BAD(f, "there is no section '%s' %u", tag, number);
    return missing == 0;
}

static int is_tag(const uint8_t *tag) {
    int i = 0;
    while (i < 8 && tag[i] > 32 && tag[i] < 127) i++;
    return i > 0 && all_zero(tag + i, 8u - (uint64_t)i);
}

/* The header, and where the sections lie; not what is in them. */
static cml_status open_file(file *f) {
    static const uint8_t magic[8] = {0x89, 'C', 'M', 'L', '\r', '\n', 0x1A, '\n'};
    uint8_t digest[32];
    uint64_t end;
    if (f->size < HEADER || memcmp(f->data, magic, 8) != 0) return BAD(f, "it does not begin as one");
    if (u32(f->data + 8) != 1)
        return fail(f->error, CML_ERROR_STALE, "the file has format %u, this player reads format 1: "
                    "cook it anew, or take a newer player", u32(f->data + 8));
    f->sections = u32(f->data + 12);
    end = HEADER + (uint64_t)SECTION * f->sections;
    if (u64(f->data + 16) != f->size)
        return BAD(f, "it states %llu bytes, and has %llu", (unsigned long long)u64(f->data + 16),
                   (unsigned long long)f->size);
    if (f->sections > MOST_SECTIONS || end > f->size || !all_zero(f->data + 56, 8))
        return BAD(f, "its header is damaged");
    sha256(f->data + HEADER, (size_t)(end - HEADER), digest);
    if (memcmp(digest, f->data + 24, 32) != 0) return BAD(f, "its table of sections is damaged");
    for (uint32_t i = 0; i < f->sections; i++) {
        const uint8_t *row = section_row(f, i);
        uint64_t offset = u64(row + 8), size = u64(row + 16);
        uint32_t number = u32(row + 24);
        int order = i == 0 ? 1 : memcmp(row, row - SECTION, 8);
        int follows = order > 0 ? number == 0 : order == 0 && number == u32(row - SECTION + 24) + 1;
        if (!is_tag(row) || !follows || u32(row + 28) != 0)
            return BAD(f, "section %u is out of its order", i);
        if (offset % 64 != 0 || offset < end || offset > f->size || size > f->size - offset)
            return BAD(f, "section %u lies outside of it, or in another", i);
        if (!all_zero(f->data + end, offset - end)) return BAD(f, "there is something before section %u", i);
        end = offset + size;
    }
    return end == f->size ? CML_OK : BAD(f, "there is something behind its last section");
}

static int text_of(file *f, const uint8_t *p, cml_text *text) {
    uint64_t offset = u32(p), length = u32(p + 4);
    if (offset > f->strings.size || length > f->strings.size - offset || length > MOST_TEXT)
        return 0;
    text->data = (const char *)f->strings.data + offset;
    text->length = (size_t)length;
    return 1;
}

/* A table of the section: u32 number and u32 offset lie at `p`. NULL where it is not all inside. */
static const uint8_t *table(part in, const uint8_t *p, uint32_t size, uint32_t *count) {
    uint64_t offset = u32(p + 4);
    *count = u32(p);
    if (offset % 8 != 0 || offset > in.size || (uint64_t)size * *count > in.size - offset) return NULL;
    return in.data + offset;
}

typedef struct code { /* of a kernel, in one language */
    const uint8_t *packed;
    uint32_t packed_size, size;
} code;

typedef struct kernel {
    cml_text label;
    uint32_t params, tensors, flags;
    code spirv, wgsl;
} kernel;

enum { KERNEL_TRUSTED = 1, KERNEL_SUBGROUPS = 2, KERNEL_HALF = 4 };

static int code_of(file *f, const uint8_t *p, code *found) {
    uint64_t offset = u64(p);
    found->packed_size = u32(p + 8);
    found->size = u32(p + 12);
    if (found->packed_size == 0) return offset == 0 && found->size == 0;
    if (offset > f->code.size || found->packed_size > f->code.size - offset) return 0;
    found->packed = f->code.data + offset;
    /* nothing that is packed so becomes more than 1032 times as long: no bombs */
    return found->size > 0 && found->size / 1040 <= found->packed_size;
}

static cml_status kernel_of(file *f, uint32_t index, kernel *k) {
    const uint8_t *p = f->kernels.data + 8 + (uint64_t)KERNEL * index;
    memset(k, 0, sizeof *k);
    k->params = u32(p + 40);
    k->tensors = u32(p + 44);
    k->flags = u32(p + 48);
    if (!text_of(f, p + 32, &k->label) || k->params % 16 != 0 || k->params == 0 || k->params > 65536 ||
        k->tensors == 0 || k->tensors > 64 || k->flags > 7 || u32(p + 52) != 0 || u64(p + 88) != 0)
        return BAD(f, "kernel %u is damaged", index);
    if (!code_of(f, p + 56, &k->spirv) || !code_of(f, p + 72, &k->wgsl) || k->spirv.size % 4 != 0 ||
        k->spirv.size + k->wgsl.size == 0)
        return BAD(f, "the code of kernel '%.*s' lies outside of its section", TEXT(k->label));
    return CML_OK;
}

/* The kernel's code, as a block of code.size bytes, or NULL and an error. */
static uint8_t *unpacked_code(file *f, const kernel *k, const code *c) {
    uint8_t *out = taken(f->memory, c->size, 1);
    if (out == NULL) {
        fail(f->error, CML_ERROR_MEMORY, "no memory for a kernel of %u bytes", c->size);
        return NULL;
    }
    if (unpacked(c->packed, c->packed_size, out, c->size) && (c == &k->wgsl || u32(out) == 0x07230203))
        return out;
    BAD(f, "the code of kernel '%.*s' is damaged", TEXT(k->label));
    given_back(f->memory, out);
    return NULL;
}

static cml_status open_kernels(file *f) {
    if (!needed_section(f, "strings", 0, &f->strings) || !needed_section(f, "kernels", 0, &f->kernels) ||
        !needed_section(f, "code", 0, &f->code))
        return CML_ERROR_CORRUPT;
    if (f->kernels.size < 8 || u32(f->kernels.data + 4) != 0 ||
        f->kernels.size != 8 + (uint64_t)KERNEL * u32(f->kernels.data))
        return BAD(f, "its table of kernels is damaged");
    f->kernel_count = u32(f->kernels.data);
    return CML_OK;
}

enum { ARENA, WEIGHTS, OWN, SPACES };

typedef struct binding {
    uint32_t space;
    uint64_t offset, bytes;
} binding;

typedef struct plan {
    cml_text profile;
    uint32_t weights, own, storage_alignment, uniform_alignment;
    uint64_t spaces[SPACES]; /* bytes of arena, weights and own */
    uint64_t binding_size, buffer_size, gas;
    uint32_t invocations, workgroup_storage, storage_buffers, lanes, software;
    double flops, bytes;
    uint32_t step_count, binding_count, input_count, output_count, update_count, params_bytes;
    const uint8_t *steps, *bindings, *inputs, *outputs, *updates, *params;
} plan;

static int is_power_of_two(uint32_t n) { return n != 0 && (n & (n - 1)) == 0; }

static int binding_of(const plan *p, const uint8_t *row, uint32_t alignment, binding *b) {
    uint64_t size;
    b->space = u32(row);
    b->offset = u64(row + 8);
    b->bytes = u64(row + 16);
    if (b->space >= SPACES || u32(row + 4) != 0) return 0;
    size = p->spaces[b->space];
    return b->offset % alignment == 0 && b->bytes % 4 == 0 && b->bytes >= 4 && b->offset <= size &&
           b->bytes <= size - b->offset;
}

typedef struct place { /* an input or output */
    cml_shape shape;
    binding at;
    uint64_t among; /* where it lies among the network's inputs, or outputs */
} place;

/* 0 where the numbers do not fit. */
static int multiplied(uint64_t *value, uint64_t by) {
    if (by != 0 && *value > ((uint64_t)1 << 48) / by) return 0;
    *value *= by;
    return 1;
}

/* The elements of a tensor, and its bytes in the layout. */
static int measure(const uint32_t *extents, uint32_t rank, uint32_t layout, uint64_t *elements,
                   uint64_t *bytes) {
    *elements = 1;
    *bytes = layout == CML_C4H ? 2 : 4;
    for (uint32_t i = 0; i < rank; i++) {
        uint64_t extent = extents[i];
        if (!multiplied(elements, extent)) return 0;
        if (layout != CML_PLAIN && i == 1) extent = (extent + 3) / 4 * 4;
        if (!multiplied(bytes, extent)) return 0;
    }
    for (uint32_t i = rank; i < 8; i++)
        if (extents[i] != 0) return 0;
    return layout == CML_PLAIN || rank >= 2;
}

static int place_of(file *f, const plan *p, const uint8_t *row, place *found) {
    cml_shape *shape = &found->shape;
    uint32_t type = u32(row + 8), layout = u32(row + 12);
    uint8_t again[BINDING] = {0};
    memset(found, 0, sizeof *found);
    shape->rank = u32(row + 16);
    if (!text_of(f, row, &shape->name) || type > CML_LOGICAL || layout > CML_C4H || shape->rank > 8 ||
        (layout == CML_C4H && type != CML_SCALAR) || u64(row + 72) != 0)
        return 0;
    shape->type = (cml_type)type;
    shape->layout = (cml_layout)layout;
    for (uint32_t i = 0; i < 8; i++) shape->extents[i] = u32(row + 20 + 4 * i);
    if (!measure(shape->extents, shape->rank, layout, &shape->elements, &shape->bytes)) return 0;
    memcpy(again, row + 52, 4);
    memcpy(again + 8, row + 56, 16);
    if (shape->elements == 0) return u64(row + 64) == 0;
    return binding_of(p, again, 4, &found->at) && found->at.bytes == shape->bytes;
}

static cml_status step_check(file *f, const plan *p, uint32_t index) {
    const uint8_t *row = p->steps + (uint64_t)STEP * index;
    uint64_t first = u32(row + 8), count = u32(row + 12), at = u32(row + 20), bytes = u32(row + 24);
    kernel k;
    cml_text text;
    if (u32(row) >= f->kernel_count) return BAD(f, "step %u has a kernel that is not there", index);
    if (kernel_of(f, u32(row), &k) != CML_OK) return CML_ERROR_CORRUPT;
    if (u32(row + 4) == 0 || first + count > p->binding_count || count != k.tensors ||
        u32(row + 16) > count || at % 16 != 0 || bytes != k.params || at + bytes > p->params_bytes ||
        u64(row + 88) != 0 || !is_amount(f64(row + 64)) || !is_amount(f64(row + 72)))
        return BAD(f, "step %u of the plan '%.*s' is damaged", index, TEXT(p->profile));
    for (uint32_t i = 32; i < 64; i += 8)
        if (!text_of(f, row + i, &text)) return BAD(f, "the names of step %u are damaged", index);
    return CML_OK;
}

static cml_status plan_tables(file *f, part in, plan *p) {
    const uint8_t *d = in.data;
    p->steps = table(in, d + 112, STEP, &p->step_count);
    p->bindings = table(in, d + 120, BINDING, &p->binding_count);
    p->inputs = table(in, d + 128, TENSOR, &p->input_count);
    p->outputs = table(in, d + 136, TENSOR, &p->output_count);
    p->updates = table(in, d + 144, UPDATE, &p->update_count);
    p->params = table(in, d + 152, 1, &p->params_bytes);
    if (!p->steps || !p->bindings || !p->inputs || !p->outputs || !p->updates || !p->params)
        return BAD(f, "tables of the plan '%.*s' lie outside of it", TEXT(p->profile));
    for (uint32_t i = 0; i < p->binding_count; i++) {
        binding b;
        if (!binding_of(p, p->bindings + (uint64_t)BINDING * i, p->storage_alignment, &b))
            return BAD(f, "binding %u of the plan '%.*s' lies outside of its buffer", i, TEXT(p->profile));
    }
    for (uint32_t i = 0; i < p->input_count + (uint64_t)p->output_count; i++) {
        place found;
        const uint8_t *row = i < p->input_count ? p->inputs + (uint64_t)TENSOR * i
                                                : p->outputs + (uint64_t)TENSOR * (i - p->input_count);
        if (!place_of(f, p, row, &found)) return BAD(f, "input or output %u is damaged", i);
    }
    for (uint32_t i = 0; i < p->update_count; i++) {
        const uint8_t *row = p->updates + (uint64_t)UPDATE * i;
        binding from, to;
        if (!binding_of(p, row, 4, &from) || !binding_of(p, row + BINDING, 4, &to) || from.space == to.space)
            return BAD(f, "update %u lies outside of its buffers", i);
    }
    for (uint32_t i = 0; i < p->step_count; i++)
        if (step_check(f, p, i) != CML_OK) return CML_ERROR_CORRUPT;
    return CML_OK;
}

/* 1 where there is no plan of that number, -1 where it is damaged. */
static int open_plan(file *f, uint32_t number, plan *p) {
    part in;
    const uint8_t *d;
    int missing = section(f, "plan", number, &in);
    memset(p, 0, sizeof *p);
    if (missing != 0) return missing;
    d = in.data;
    if (in.size < PLAN || !text_of(f, d, &p->profile) || u32(d + 84) != 0 || !all_zero(d + 160, 32) ||
        u32(d + 80) > 1 || !is_power_of_two(u32(d + 40)) || !is_power_of_two(u32(d + 44)) ||
        u32(d + 40) < 4 || !is_amount(f64(d + 88)) || !is_amount(f64(d + 96))) {
        BAD(f, "the header of plan %u is damaged", number);
        return -1;
    }
    p->weights = u32(d + 8);
    p->own = u32(d + 12);
    p->spaces[ARENA] = u64(d + 16);
    p->spaces[WEIGHTS] = u64(d + 24);
    p->spaces[OWN] = u64(d + 32);
    p->storage_alignment = u32(d + 40);
    p->uniform_alignment = u32(d + 44);
    p->binding_size = u64(d + 48);
    p->buffer_size = u64(d + 56);
    p->invocations = u32(d + 64);
    p->workgroup_storage = u32(d + 68);
    p->storage_buffers = u32(d + 72);
    p->lanes = u32(d + 76);
    p->software = u32(d + 80);
    p->flops = f64(d + 88);
    p->bytes = f64(d + 96);
    p->gas = u64(d + 104);
    if (p->spaces[ARENA] >> 48 || p->spaces[WEIGHTS] >> 48 || p->spaces[OWN] >> 48 ||
        (p->own == NONE) != (p->spaces[OWN] == 0)) {
        BAD(f, "the sizes of plan %u are damaged", number);
        return -1;
    }
    return plan_tables(f, in, p) == CML_OK ? 0 : -1;
}

/* The weights and what is the plan's own, as long as the plan says. */
static cml_status plan_values(file *f, const plan *p, part values[SPACES]) {
    memset(values, 0, SPACES * sizeof values[0]);
    if (!needed_section(f, "weights", p->weights, &values[WEIGHTS])) return CML_ERROR_CORRUPT;
    if (p->own != NONE && !needed_section(f, "own", p->own, &values[OWN])) return CML_ERROR_CORRUPT;
    if (values[WEIGHTS].size != p->spaces[WEIGHTS] || values[OWN].size != p->spaces[OWN])
        return BAD(f, "the weights of the plan '%.*s' are not as long as it says", TEXT(p->profile));
    return CML_OK;
}

typedef struct guess { /* what a device is believed to do */
    double flops_per_ms, bytes_per_ms, launch_ms;
    uint32_t count;
    const uint8_t *factors;
    file *f;
} guess;

static int lower(int c) { return c >= 'A' && c <= 'Z' ? c + 32 : c; }

static int is_word(int c) { return (lower(c) >= 'a' && lower(c) <= 'z') || (c >= '0' && c <= '9') || c == '_'; }

/* Whether one of the words that `|` joins occurs in the name; \b is a word's beginning or end. */
static int matches(cml_text pattern, cml_text name) {
    size_t start = 0, end, at, i;
    for (; start <= pattern.length; start = end + 1) {
        const char *word = pattern.data + start;
        size_t length;
        int opens, closes;
        for (end = start; end < pattern.length && pattern.data[end] != '|'; end++) {}
        length = end - start;
        opens = length >= 2 && word[0] == '\\' && word[1] == 'b';
        if (opens) word += 2, length -= 2;
        closes = length >= 2 && word[length - 2] == '\\' && word[length - 1] == 'b';
        if (closes) length -= 2;
        for (at = 0; at + length <= name.length; at++) {
            for (i = 0; i < length && lower(name.data[at + i]) == lower(word[i]); i++) {}
            if (i == length && !(opens && at > 0 && is_word(name.data[at - 1])) &&
                !(closes && at + length < name.length && is_word(name.data[at + length])))
                return 1;
        }
    }
    return 0;
}

/* What is believed of a device of that name; the general numbers where the file says nothing. */
static cml_status guess_of(file *f, cml_text name, guess *g) {
    part in;
    uint32_t devices, factors, chosen = NONE;
    int missing = section(f, "guess", 0, &in);
    const guess general = {2e7, 4e6, 0.004, 0, NULL, NULL};
    *g = general;
    if (missing != 0) return missing > 0 ? CML_OK : CML_ERROR_CORRUPT;
    if (in.size < 8) return BAD(f, "its first guesses are damaged");
    devices = u32(in.data);
    factors = u32(in.data + 4);
    if (devices > MOST_DEVICES || factors > MOST_FACTORS ||
        in.size != 8 + (uint64_t)GUESS * devices + (uint64_t)FACTOR * factors)
        return BAD(f, "its first guesses are damaged");
    for (uint32_t i = 0; i < devices; i++) {
        const uint8_t *row = in.data + 8 + (uint64_t)GUESS * i;
        cml_text pattern;
        uint64_t first = u32(row + 32), count = u32(row + 36);
        if (!text_of(f, row, &pattern) || first + count > factors || !(f64(row + 8) >= 1e-9) ||
            !(f64(row + 16) >= 1e-9) || !is_amount(f64(row + 8)) || !is_amount(f64(row + 16)) ||
            !is_amount(f64(row + 24)))
            return BAD(f, "first guess %u is damaged", i);
        if (chosen == NONE && matches(pattern, name)) chosen = i;
    }
    for (uint32_t i = 0; i < factors; i++) {
        const uint8_t *row = in.data + 8 + (uint64_t)GUESS * devices + (uint64_t)FACTOR * i;
        cml_text kernel_name;
        if (!text_of(f, row, &kernel_name) || !(f64(row + 8) >= 1e-9) || !is_amount(f64(row + 8)))
            return BAD(f, "factor %u of its first guesses is damaged", i);
    }
    if (chosen != NONE) {
        const uint8_t *row = in.data + 8 + (uint64_t)GUESS * chosen;
        g->flops_per_ms = f64(row + 8);
        g->bytes_per_ms = f64(row + 16);
        g->launch_ms = f64(row + 24);
        g->factors = in.data + 8 + (uint64_t)GUESS * devices + (uint64_t)FACTOR * u32(row + 32);
        g->count = u32(row + 36);
        g->f = f;
    }
    return CML_OK;
}

static cml_status check_golden(file *f) {
    part in;
    uint32_t i, k, extents[8];
    uint64_t elements, bytes;
    int missing = section(f, "golden", 0, &in);
    if (missing != 0) return missing > 0 ? CML_OK : CML_ERROR_CORRUPT;
    if (in.size < 8 || (in.size - 8) / GOLDEN < u32(in.data)) return BAD(f, "its example is damaged");
    for (i = 0; i < u32(in.data); i++) {
        const uint8_t *row = in.data + 8 + (uint64_t)GOLDEN * i;
        cml_text name;
        for (k = 0; k < 8; k++) extents[k] = u32(row + 20 + 4 * k);
        if (!text_of(f, row, &name) || u32(row + 8) > 1 || u32(row + 12) > CML_LOGICAL || u32(row + 16) > 8 ||
            u32(row + 52) != 0 || !measure(extents, u32(row + 16), CML_PLAIN, &elements, &bytes) ||
            u64(row + 56) > in.size || bytes > in.size - u64(row + 56))
            return BAD(f, "tensor %u of its example is damaged", i);
    }
    return CML_OK;
}

static file file_of(const void *bytes, size_t size, home *memory, cml_error *error) {
    file f = {0};
    f.data = bytes;
    f.size = bytes == NULL ? 0 : size;
    f.memory = memory;
    f.error = error;
    if (error != NULL) memset(error, 0, sizeof *error);
    return f;
}

static cml_status check_kernels(file *f) {
    for (uint32_t i = 0; i < f->kernel_count; i++) {
        kernel k;
        int language;
        if (kernel_of(f, i, &k) != CML_OK) return CML_ERROR_CORRUPT;
        for (language = 0; language < 2; language++) {
            const code *c = language == 0 ? &k.spirv : &k.wgsl;
            uint8_t *out = c->size == 0 ? NULL : unpacked_code(f, &k, c);
            if (c->size != 0 && out == NULL) return f->error ? f->error->status : CML_ERROR_CORRUPT;
            given_back(f->memory, out);
        }
    }
    return CML_OK;
}

cml_status cml_check(const void *bytes, size_t size, const cml_allocator *allocator, cml_error *error) {
    home memory = {{NULL, NULL, NULL}, NULL, 0, 0, 0, 0, 0};
    cml_error unheard;
    file f = file_of(bytes, size, &memory, error ? error : &unheard);
    cml_text nobody = {"", 0};
    cml_status status;
    guess g;
    plan p;
    part values[SPACES], whole;
    uint32_t i;
    int missing = 0;
    if (allocator != NULL) memory.hook = *allocator;
    if ((status = open_file(&f)) != CML_OK) return status;
    for (i = 0; i < f.sections; i++) { /* those that no player uses too */
        char tag[9] = {0};
        memcpy(tag, section_row(&f, i), 8);
        if (section(&f, tag, u32(section_row(&f, i) + 24), &whole) != 0) return CML_ERROR_CORRUPT;
    }
    if ((status = open_kernels(&f)) != CML_OK || (status = check_kernels(&f)) != CML_OK) return status;
    for (i = 0; (missing = open_plan(&f, i, &p)) == 0; i++)
        if ((status = plan_values(&f, &p, values)) != CML_OK) return status;
    if (missing < 0) return CML_ERROR_CORRUPT;
    if (i == 0 || !needed_section(&f, "meta", 0, &whole)) return BAD(&f, "it has no plan, or no meta");
    status = check_golden(&f);
    return status == CML_OK ? guess_of(&f, nobody, &g) : status;
}

/* ------------------------------------------------------------------ costs (scheduler/planning/cost_model.py) */

/* To decide as the Python scheduler does, to the bit, sums and products stand in its order here, and
 * no compiler may fuse them: -ffp-contract=off where a processor has fused operations. */

typedef struct point { /* the logarithm of the time (ms) of about so many workgroups */
    double log_count, log_ms, spread;
    uint64_t samples;
    int bucket;
} point;

typedef struct curve { /* time over number of workgroups of one step key, in the order of numbers */
    uint64_t key, version, samples;
    point *points;
    int count, room;
} curve;

typedef struct step {
    uint32_t kernel, groups, first_binding, binding_count, params_at, params_bytes;
    cml_text op, title;
    double work, factor; /* ms of a workgroup as first guessed, and how many times that it takes */
    uint64_t key;        /* of what costs the same per workgroup */
    curve *curve;
    uint64_t known_version; /* of the curve, when this was asked: */
    double known_log;       /* of the whole step's ms, without the drift */
} step;

enum { WINDOW = 1200, MEMORY = 48, CLIP_AFTER = 4, SETTLED = 12, GUESSED_SAMPLES = 4, ENOUGH = 8, REST_EVERY = 48 };

typedef struct margin { /* scheduler/planning/margin.py */
    double share;
    uint32_t first, count;
    double predicted[WINDOW], measured[WINDOW], sorted[WINDOW];
    uint8_t hopeless[WINDOW];
} margin;

typedef struct model {
    double launch_ms, unknown, drift, error;
    uint64_t unknown_samples;
    int guessed; /* a first guess was taken over */
    margin tail;
    curve **table; /* by key, open addressing */
    uint32_t room, count;
    double *predicted; /* for learn() */
} model;

static double clipped(double error, double most) {
    double least = error < most ? error : most;
    return -most > least ? -most : least;
}

static double least_of(double a, double b) { return b < a ? b : a; }
static double most_of(double a, double b) { return b > a ? b : a; }

static int bucket_of(uint32_t count) { return (int)rint(2 * log2(count)); }

static uint64_t key_of(cml_text text) { /* FNV-1a; two keys of one hash would only share their costs */
    uint64_t hash = 0xcbf29ce484222325u;
    for (size_t i = 0; i < text.length; i++) hash = (hash ^ (uint8_t)text.data[i]) * 0x100000001b3u;
    return hash;
}

static curve **curve_at(const model *m, uint64_t key) {
    uint32_t at = (uint32_t)(key ^ key >> 32) & (m->room - 1);
    while (m->table[at] != NULL && m->table[at]->key != key) at = (at + 1) & (m->room - 1);
    return m->table + at;
}

static int more_points(home *memory, curve *c, int room) {
    point *points = room > c->room ? taken(memory, (uint64_t)room, sizeof *points) : c->points;
    if (points == NULL || room <= c->room) return points != NULL;
    if (c->count > 0) memcpy(points, c->points, sizeof *points * (size_t)c->count);
    given_back(memory, c->points);
    c->points = points;
    c->room = room;
    return 1;
}

/* The curve of the key, with room for every number of workgroups up to `groups`; NULL: no memory. */
static curve *curve_of(home *memory, model *m, uint64_t key, uint32_t groups) {
    curve **at, **old = m->table;
    uint32_t room = m->room;
    if (2 * (m->count + 1) > room) {
        curve **larger = taken(memory, room ? 2 * room : 64, sizeof *larger);
        if (larger == NULL) return NULL;
        m->table = larger;
        m->room = room ? 2 * room : 64;
        for (uint32_t i = 0; i < room; i++)
            if (old[i] != NULL) *curve_at(m, old[i]->key) = old[i];
        given_back(memory, old);
    }
    at = curve_at(m, key);
    if (*at == NULL) {
        *at = taken(memory, 1, sizeof **at);
        if (*at == NULL) return NULL;
        (*at)->key = key;
        (*at)->version = 1;
        m->count++;
    }
    return more_points(memory, *at, bucket_of(groups) + 1) ? *at : NULL;
}

/* The logarithm of the time of so many workgroups, of a curve that has points. */
static double between(const curve *c, uint32_t count) {
    const point *p = c->points, *above, *below;
    double x = log(count), width, share;
    int low = 0, high = c->count, first, last;
    while (low < high) {
        int middle = (low + high) / 2;
        if (p[middle].log_count < x)
            low = middle + 1;
        else
            high = middle;
    }
    first = low;
    last = first < c->count && same(p[first].log_count, x) ? first : first - 1;
    if (first == c->count || last < 0) {
        below = p + (first < c->count ? first : c->count - 1);
        return below->log_ms + x - below->log_count;
    }
    above = p + first;
    below = p + last;
    width = above->log_count - below->log_count;
    share = width > 0 ? (x - below->log_count) / width : 0.0;
    return below->log_ms + share * (above->log_ms - below->log_ms);
}

static int has_samples(const step *s) { return s->curve != NULL && s->curve->count > 0; }

/* The median time of so many workgroups of the step. */
static double predict(const model *m, step *s, uint32_t count) {
    if (count == 0) return 0.0;
    if (!has_samples(s)) return m->launch_ms + count * s->work * s->factor * exp(m->unknown + m->drift);
    if (count != s->groups) return exp(between(s->curve, count) + m->drift);
    if (s->known_version != s->curve->version) {
        s->known_log = between(s->curve, count);
        s->known_version = s->curve->version;
    }
    return exp(s->known_log + m->drift);
}

/* The largest number of workgroups, at most `limit`, predicted to take `ms`. */
static uint32_t groups_within(const model *m, step *s, uint32_t limit, double ms) {
    uint32_t low = 1, high = limit;
    if (limit == 0 || ms <= 0 || predict(m, s, 1) > ms) return 0;
    if (predict(m, s, limit) <= ms) return limit;
    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;
        if (predict(m, s, middle) <= ms)
            low = middle;
        else
            high = middle;
    }
    return low;
}

static double learn_point(point *p, double log_count, double log_ms) {
    double weight, error, believed;
    p->samples++;
    weight = 1.0 / (double)(p->samples < MEMORY ? p->samples : MEMORY);
    error = log_ms - (log_count - p->log_count) - p->log_ms;
    if (p->samples > CLIP_AFTER) error = clipped(error, log(2.5));
    believed = error;
    if (p->samples > SETTLED) believed = clipped(error, 0.2 + 3.0 * p->spread);
    p->log_ms += weight * believed;
    p->spread += weight * (fabs(error) - p->spread);
    return weight * believed;
}

static void learn_curve(home *memory, curve *c, uint32_t count, double ms) {
    double x = log(count), y = log(ms), moved;
    int bucket = bucket_of(count), at = 0;
    c->version++;
    c->samples++;
    while (at < c->count && c->points[at].bucket < bucket) at++;
    if (at == c->count || c->points[at].bucket != bucket) {
        point fresh = {0, 0, 0, 1, 0};
        if (c->count == c->room && !more_points(memory, c, c->room + 8)) return;
        fresh.log_count = x;
        fresh.log_ms = y;
        fresh.bucket = bucket;
        memmove(c->points + at + 1, c->points + at, sizeof fresh * (size_t)(c->count - at));
        c->points[at] = fresh;
        c->count++;
        return;
    }
    moved = learn_point(c->points + at, x, y);
    for (int i = 0; i < c->count; i++) /* slower is slower for every number of workgroups */
        if (i != at) c->points[i].log_ms += 0.5 * clipped(moved, log(2.5));
}

typedef struct ran { /* of a step */
    step *step;
    uint32_t count;
} ran;

static int knows(const ran *r) {
    int bucket = bucket_of(r->count);
    if (has_samples(r->step))
        for (int i = 0; i < r->step->curve->count; i++)
            if (r->step->curve->points[i].bucket == bucket) return 1;
    return 0;
}

/* The slices together took `ms`; each gets its predicted share. */
static void learn(home *memory, model *m, const ran *parts, uint32_t n, double ms) {
    double total = 0, ratio, slower;
    int all_known = 1;
    for (uint32_t i = 0; i < n; i++) total += m->predicted[i] = predict(m, parts[i].step, parts[i].count);
    if (!(ms > 0) || !(total > 0) || isinf(ms)) return;
    ratio = ms / total;
    for (uint32_t i = 0; i < n && all_known; i++) all_known = knows(parts + i);
    if (all_known) {
        double error = clipped(log(ratio), log(2.5));
        m->drift += 1.0 / 32 * clipped(error, 0.1 + 3.0 * m->error);
        m->error += 1.0 / 32 * (fabs(error) - m->error);
    }
    slower = exp(m->drift);
    for (uint32_t i = 0; i < n; i++) {
        if (!has_samples(parts[i].step) && m->predicted[i] > 8 * m->launch_ms) {
            m->unknown_samples++;
            m->unknown += log(ratio) / (double)(m->unknown_samples < MEMORY ? m->unknown_samples : MEMORY);
            m->unknown = clipped(m->unknown, log(100));
        }
        if (parts[i].step->curve != NULL)
            learn_curve(memory, parts[i].step->curve, parts[i].count, m->predicted[i] * ratio / slower);
    }
}

static double excess(double predicted, double measured, int hopeless) {
    return hopeless ? 0.0 : (measured - predicted) / sqrt(predicted);
}

static void remember(margin *t, double predicted, double measured, int hopeless) {
    double now = excess(predicted, measured, hopeless);
    uint32_t at, kept = t->count;
    if (t->count == WINDOW) {
        double old = excess(t->predicted[t->first], t->measured[t->first], t->hopeless[t->first]);
        for (at = 0; t->sorted[at] < old; at++) {}
        kept--;
        memmove(t->sorted + at, t->sorted + at + 1, sizeof now * (kept - at));
        t->first = (t->first + 1) % WINDOW;
        t->count--;
    }
    at = (t->first + t->count) % WINDOW;
    t->predicted[at] = predicted;
    t->measured[at] = measured;
    t->hopeless[at] = (uint8_t)hopeless;
    t->count++;
    for (at = kept; at > 0 && t->sorted[at - 1] > now; at--) t->sorted[at] = t->sorted[at - 1];
    t->sorted[at] = now;
}

static double tail_quantile(const margin *t) {
    double aimed = 0.8 * t->share, reach;
    double rank = ceil((1 - aimed) * (t->count + 1.0)) - 1;
    if (rank < t->count) return t->sorted[(uint32_t)rank];
    reach = 0.5 * (t->sorted[t->count - 1] - t->sorted[t->count / 2]) * (1 - t->count * aimed);
    return t->sorted[t->count - 1] + most_of(0.0, reach);
}

/* The predicted milliseconds to plan for in a budget. */
static double aim_of(const margin *t, double budget) {
    double half;
    if (t->count < ENOUGH) return budget / 1.3;
    half = 0.5 * most_of(0.0, tail_quantile(t));
    return most_of(pow(sqrt(half * half + budget) - half, 2), 0.125 * budget);
}

static void learn_frame(margin *t, double predicted, double measured, double budget) {
    double lifted = most_of(0.0, 0.25 * budget - predicted);
    if (!(predicted > 0) || !(measured > 0) || isinf(predicted + measured)) return;
    remember(t, predicted + lifted, measured + lifted, measured - predicted > budget);
}

/* ------------------------------------------------------------------ jobs, and what the decision knows */

enum { MOST_TAKEN = 16, MOST_GROUPS = 64, IN_FLIGHT = 16, SLOT_NAME = 48, APART_EVERY = 16, KNOWN = 6 };
enum { BEGUN, WAITS, REFUSED }; /* what comes of a start or an end */

typedef struct core core;
typedef struct job job;

struct cml_net {
    home memory;
    step *steps;
    uint32_t step_count, exclusive; /* of what is equal there only one job is under way */
    double launch_ms;               /* of its file's first guess */
    const double *load_ms;          /* replays: what steps took when the network was loaded */
    double *after;                  /* predicted ms of the steps from each one on, in the frame: */
    uint64_t after_frame, seen_frame;
    int adopted, is_ready, guessed;
    cml_net *next;
    struct device_net *device;
};

struct job {
    uint32_t generation, number;
    cml_state state;
    int paused, dated, released, touched, begun_now, wants_read;
    cml_net *net;
    double priority, deadline_at, virtual_ms, given_ms, last_served_ms;
    uint32_t step, group;
    char slot[SLOT_NAME], error[200];
    job *makers[MOST_TAKEN]; /* whose outputs it takes: they stay until it has them */
    uint32_t maker_count, takers;
    cml_state was; /* before the frame, which may be taken back */
    uint32_t was_step, was_group;
    double was_given, was_virtual;
    struct device_job *device;
};

typedef struct candidate { /* a job that could run in this frame */
    job *job;
    int running, urgent;
    double remaining, laxity;
} candidate;

typedef struct planned {
    job *job;
    uint32_t step, first, count;
    double ms;
} planned;

typedef struct in_flight { /* a frame whose timings are awaited: the parts of each timed group */
    cml_report report;
    int given; /* decided by somebody else */
    uint32_t group_count, part_count, arrived;
    uint32_t ends[MOST_GROUPS];
    double ms[MOST_GROUPS];
    uint8_t has[MOST_GROUPS];
    ran *parts;
} in_flight;

struct core {
    home memory;
    model model;
    cml_policy policy;
    double frame_ms, rate, now;
    uint32_t granule, max_groups, max_slices, max_jobs, numbers;
    uint64_t frame;
    job *jobs, **live; /* live: those that have not ended, the oldest first */
    uint32_t live_count;
    double left[2]; /* the least virtual time of those that ended since the frame before, by idleness */
    cml_net *nets;
    uint32_t net_count;
    candidate *candidates;
    uint32_t candidate_count;
    planned *slices;
    job **starts;
    uint32_t slice_count, start_count;
    uint32_t group_ends[MOST_GROUPS], group_count;
    int open;
    cml_report report, measured[IN_FLIGHT];
    uint32_t measured_count;
    in_flight flights[IN_FLIGHT], *encoded;
    uint32_t first_flight, flight_count;
    int wall_clock, has_ended; /* scheduler/feedback.py, where nothing is timed */
    double ended_ms, usual_ms, back_off, interval_ms;
    uint32_t intervals, without, since_rest; /* frames that ran nothing in a row, and since then */
    int rest_due;
    void (*planner)(core *c); /* replays: somebody else decides */
    int (*ready)(core *c, cml_net *net);
    void (*prepare)(core *c, cml_net *net, double ms);
    int (*start)(core *c, job *j);
    int (*finish)(core *c, job *j);
    void (*ended)(core *c, job *j); /* it is out of the running, for good or ill */
};

static int over(const job *j) { return j->state != CML_QUEUED && j->state != CML_RUNNING; }

static int idle(const job *j) { return !(j->priority > 0); }

/* Memory for all that a frame needs; 0 where there is none. The numbers were set before. */
static int core_make(core *c) {
    c->jobs = taken(&c->memory, c->max_jobs, sizeof *c->jobs);
    c->live = taken(&c->memory, c->max_jobs, sizeof *c->live);
    c->starts = taken(&c->memory, c->max_jobs, sizeof *c->starts);
    c->candidates = taken(&c->memory, c->max_jobs, sizeof *c->candidates);
    c->slices = taken(&c->memory, c->max_slices, sizeof *c->slices);
    c->model.predicted = taken(&c->memory, c->max_slices, sizeof(double));
    for (uint32_t i = 0; i < IN_FLIGHT; i++) c->flights[i].parts = taken(&c->memory, c->max_slices, sizeof(ran));
    c->left[0] = c->left[1] = HUGE_VAL;
    c->usual_ms = c->interval_ms = c->frame_ms;
    c->back_off = 1.0;
    c->since_rest = REST_EVERY;
    c->model.error = log(2.5);
    c->model.launch_ms = 0.004;
    return !c->memory.is_short;
}

/* The network's steps get their cost curves; 0 where there is no memory. */
static int adopt(core *c, cml_net *net) {
    if (net->adopted) return 1;
    for (uint32_t i = 0; i < net->step_count; i++) {
        step *s = net->steps + i;
        s->curve = curve_of(&c->memory, &c->model, s->key, s->groups);
        if (s->curve == NULL) return 0;
    }
    if (net->launch_ms > 0 && !c->model.guessed) { /* of one device all files say the same */
        c->model.launch_ms = net->launch_ms;
        c->model.unknown_samples += net->guessed ? GUESSED_SAMPLES : 0;
        c->model.guessed = 1;
    }
    net->exclusive = net->exclusive == NONE ? c->net_count : net->exclusive;
    c->net_count++;
    net->adopted = 1;
    net->next = c->nets;
    c->nets = net;
    return 1;
}

/* Predicted time of the network's steps from `first` on. */
static double from_step(core *c, cml_net *net, uint32_t first) {
    if (net->after_frame != c->frame + 1 || !c->open) {
        uint32_t i = net->step_count;
        for (net->after[i] = 0.0; i > 0; i--)
            net->after[i - 1] = net->after[i] + predict(&c->model, net->steps + i - 1, net->steps[i - 1].groups);
        net->after_frame = c->open ? c->frame + 1 : 0;
    }
    return net->after[first];
}

/* Predicted GPU time of what is left of a job. */
static double remaining_ms(core *c, job *j) {
    step *s;
    if (over(j) || j->step >= j->net->step_count) return 0.0;
    s = j->net->steps + j->step;
    return predict(&c->model, s, s->groups - j->group) + from_step(c, j->net, j->step + 1);
}

static void let_makers_go(job *j) {
    while (j->maker_count > 0) j->makers[--j->maker_count]->takers--;
}

/* Take a job out of the running. */
static void end_job(core *c, job *j, cml_state state, const char *why) {
    uint32_t i = 0;
    double *left = &c->left[idle(j)];
    if (over(j)) return;
    while (c->live[i] != j) i++;
    memmove(c->live + i, c->live + i + 1, sizeof *c->live * (c->live_count - i - 1));
    c->live_count--;
    snprintf(j->error, sizeof j->error, "%s", why);
    j->state = state;
    *left = least_of(*left, j->virtual_ms);
    if (c->ended != NULL) c->ended(c, j);
    if (state != CML_DONE) let_makers_go(j); /* the end of one that is done may be taken back */
}

static void insert_live(core *c, job *j) {
    uint32_t at = c->live_count++;
    for (; at > 0 && c->live[at - 1]->number > j->number; at--) c->live[at] = c->live[at - 1];
    c->live[at] = j;
}

/* A place for a job: a free one, else that of one that failed and that nobody asks for; or NULL. */
static job *free_place(core *c) {
    job *found = NULL;
    for (uint32_t i = 0; i < c->max_jobs; i++) {
        job *j = c->jobs + i;
        if (j->state == CML_GONE) return j;
        if ((j->state == CML_CANCELLED || j->state == CML_FAILED) && j->takers == 0 &&
            (found == NULL || j->number < found->number))
            found = j;
    }
    return found;
}

/* A new job starts level with the others: it may not make up for its absence. */
static void enlist(core *c, job *j) {
    double level = HUGE_VAL;
    for (uint32_t i = 0; j->net->load_ms != NULL && i < j->net->step_count; i++) {
        ran whole = {j->net->steps + i, j->net->steps[i].groups};
        if (!has_samples(whole.step)) learn(&c->memory, &c->model, &whole, 1, j->net->load_ms[i]);
    }
    if (j->slot[0] != 0) {
        for (uint32_t i = c->live_count; i > 0; i--)
            if (c->live[i - 1]->state == CML_QUEUED && strcmp(c->live[i - 1]->slot, j->slot) == 0)
                end_job(c, c->live[i - 1], CML_CANCELLED, "superseded by a newer job of its slot");
        c->left[0] = c->left[1] = HUGE_VAL;
    }
    for (uint32_t i = 0; i < c->live_count; i++)
        if (idle(c->live[i]) == idle(j)) level = least_of(level, c->live[i]->virtual_ms);
    level = least_of(level, c->left[idle(j)]);
    j->virtual_ms = isinf(level) ? 0.0 : level;
    j->state = CML_QUEUED;
    insert_live(c, j);
}

/* ------------------------------------------------------------------ whose turn it is (scheduler/planning/policy.py) */

static int in_fair_order(const candidate *a, const candidate *b) {
    const job *x = a->job, *y = b->job;
    if (idle(x) != idle(y)) return idle(x) < idle(y);
    if (!same(x->virtual_ms, y->virtual_ms)) return x->virtual_ms < y->virtual_ms;
    if (!same(x->priority, y->priority)) return x->priority > y->priority;
    return x->number < y->number;
}

static int comes_before(cml_policy policy, const candidate *a, const candidate *b) {
    if (policy == CML_BY_PRIORITY || (a->urgent && b->urgent)) {
        if (a->urgent && !same(a->laxity, b->laxity)) return a->laxity < b->laxity;
        if (!same(a->job->priority, b->job->priority)) return a->job->priority > b->job->priority;
        return a->job->number < b->job->number;
    }
    if (a->urgent != b->urgent) return a->urgent;
    return in_fair_order(a, b);
}

/* The candidates as the policy would run them. */
static void put_in_order(core *c) {
    candidate *all = c->candidates, *starved = NULL, first;
    uint32_t k;
    for (uint32_t i = 0; i < c->candidate_count; i++) {
        candidate *one = all + i;
        const job *j = one->job;
        one->urgent = 0;
        if (c->policy == CML_LEAST_LAXITY && j->dated && !idle(j)) {
            double laxity = j->deadline_at - c->now - one->remaining / most_of(c->rate, 1e-9);
            one->urgent = laxity >= 0;
            one->laxity = laxity - (j->group || j->step ? 20.0 : 0.0);
        }
    }
    for (uint32_t i = 1; i < c->candidate_count; i++) {
        first = all[i];
        for (k = i; k > 0 && comes_before(c->policy, &first, all + k - 1); k--) all[k] = all[k - 1];
        all[k] = first;
    }
    for (uint32_t i = 0; c->policy == CML_LEAST_LAXITY && i < c->candidate_count; i++) {
        const job *j = all[i].job, *best = starved ? starved->job : NULL;
        if (!(c->now - j->last_served_ms > 500.0) || idle(j)) continue;
        if (best == NULL || j->last_served_ms < best->last_served_ms ||
            (same(j->last_served_ms, best->last_served_ms) && j->number < best->number))
            starved = all + i;
    }
    if (starved != NULL) {
        first = *starved;
        memmove(all + 1, all, sizeof first * (size_t)(starved - all));
        all[0] = first;
    }
}

/* ------------------------------------------------------------------ the decision (scheduler/planning/plan.py) */

/* How many workgroups of the step to take, of `limit` that are left of it. */
static uint32_t count_within(const core *c, step *s, uint32_t limit, double ms, int at_least_one) {
    uint32_t count = groups_within(&c->model, s, limit, ms);
    if (c->granule > 1 && c->granule < count && count < limit) count -= count % c->granule;
    if (count == 0 && at_least_one) return limit < c->granule ? limit : c->granule;
    return count;
}

/* The job's next slices within `left` ms; whether that is all of it. */
static int slices_of(core *c, const candidate *one, double *left) {
    job *j = one->job;
    uint32_t at = j->step, group = j->group, before = c->slice_count;
    int is_first = c->slice_count == 0;
    while (at < j->net->step_count && c->slice_count < c->max_slices) {
        step *s = j->net->steps + at;
        planned *made = c->slices + c->slice_count;
        int alone = is_first && c->slice_count == before, probing = !has_samples(s);
        if (*left <= (alone ? 0.0 : 0.02 * c->report.aim_ms)) break;
        made->count = count_within(c, s, s->groups - group, probing ? *left * 0.25 : *left, alone);
        if (made->count == 0) break;
        made->job = j;
        made->step = at;
        made->first = group;
        made->ms = predict(&c->model, s, made->count);
        *left -= made->ms;
        c->slice_count++;
        group += made->count;
        if (group == s->groups) at++, group = 0;
        if (probing) break; /* what it takes must be known before more of it is added */
    }
    return at >= j->net->step_count;
}

static int starts_beside(const core *c, uint32_t exclusive) {
    for (uint32_t i = 0; i < c->start_count; i++)
        if (c->starts[i]->net->exclusive == exclusive) return 1;
    return 0;
}

/* Slices in the policy's order until the aim is reached. */
static void decide(core *c, int behind, cml_reason otherwise) {
    double left = c->report.aim_ms;
    c->slice_count = c->start_count = 0;
    c->report.reason = otherwise;
    if (c->planner != NULL) {
        c->planner(c);
        return;
    }
    if (!(c->report.budget_ms > 0) || behind) {
        c->report.reason = c->report.budget_ms > 0 ? CML_WAITING_FOR_GPU : CML_BUDGET;
        return;
    }
    put_in_order(c);
    for (uint32_t i = 0; i < c->candidate_count; i++) {
        const candidate *one = c->candidates + i;
        uint32_t before = c->slice_count;
        int whole;
        if (!one->running && starts_beside(c, one->job->net->exclusive)) continue;
        whole = slices_of(c, one, &left);
        if (!one->running && (c->slice_count > before || whole)) c->starts[c->start_count++] = one->job;
        if (!whole) {
            c->report.reason = CML_BUDGET;
            return;
        }
    }
}

/* ------------------------------------------------------------------ a frame (scheduler/filling.py, jobs/) */

/* Whether its inputs are there; it fails where one never will be. */
static int inputs_are_there(core *c, job *j) {
    int waits = 0;
    for (uint32_t i = 0; i < j->maker_count; i++) {
        const job *maker = j->makers[i];
        if (maker->state == CML_CANCELLED || maker->state == CML_FAILED) {
            end_job(c, j, CML_FAILED, "the job whose output it takes was cancelled or failed");
            return 0;
        }
        waits |= !over(maker);
    }
    return !waits;
}

static int is_busy(const core *c, uint32_t exclusive) {
    for (uint32_t i = 0; i < c->live_count; i++)
        if (c->live[i]->state == CML_RUNNING && c->live[i]->net->exclusive == exclusive) return 1;
    return 0;
}

/* The jobs that could run now; networks that are not ready get on with it. Why there may be none. */
static cml_reason gather(core *c, double budget) {
    cml_reason otherwise = CML_NOTHING_TO_DO;
    uint32_t unready = 0;
    int pass;
    c->candidate_count = 0;
    for (uint32_t i = 0; i < c->live_count;) { /* makers are older than takers: one pass finds all */
        job *j = c->live[i];
        int there = j->state != CML_QUEUED || inputs_are_there(c, j);
        if (over(j)) continue;
        if (j->state == CML_QUEUED && (!there || j->paused)) otherwise = CML_ALL_WAITING;
        if (j->state == CML_RUNNING ? !j->paused : there && !j->paused) {
            c->candidates[c->candidate_count++].job = j;
            if (j->state == CML_QUEUED && j->net->seen_frame != c->frame + 1) {
                j->net->seen_frame = c->frame + 1;
                j->net->is_ready = c->ready(c, j->net);
                unready += !j->net->is_ready;
            }
        }
        i++;
    }
    if (unready > 0) otherwise = CML_PREPARING;
    for (pass = 0; pass < 2; pass++) { /* prepare all that is not ready, then drop whoever waits for it */
        uint32_t kept = 0;
        for (uint32_t i = 0; i < c->candidate_count; i++) {
            job *j = c->candidates[i].job;
            int queued = j->state == CML_QUEUED;
            if (pass == 0 && queued && !j->net->is_ready && j->net->seen_frame == c->frame + 1) {
                j->net->seen_frame = 0;
                c->prepare(c, j->net, budget / unready);
            }
            if (pass == 1 && (over(j) || (queued && (!j->net->is_ready || is_busy(c, j->net->exclusive)))))
                continue;
            c->candidates[kept++].job = j;
        }
        c->candidate_count = kept;
    }
    for (uint32_t i = 0; i < c->candidate_count; i++) {
        candidate *one = c->candidates + i;
        one->running = one->job->state == CML_RUNNING;
        one->remaining = one->job->dated ? remaining_ms(c, one->job) : 0.0;
    }
    return otherwise;
}

static void snapshot(job *j) {
    j->touched = 1;
    j->was = j->state;
    j->was_step = j->step;
    j->was_group = j->group;
    j->was_given = j->given_ms;
    j->was_virtual = j->virtual_ms;
}

static int begin_job(core *c, job *j) {
    int came = c->start(c, j);
    if (came != BEGUN) return came;
    snapshot(j);
    j->state = CML_RUNNING;
    j->begun_now = 1;
    return BEGUN;
}

/* The candidates after some have started and one could not. Where it has to wait, so have the others
 * of its network; and those of a network that has been taken. */
static void go_without(core *c, const job *refused) {
    uint32_t kept = 0;
    for (uint32_t i = 0; i < c->candidate_count; i++) {
        candidate one = c->candidates[i];
        uint32_t exclusive = one.job->net->exclusive;
        int waits = !over(refused) && exclusive == refused->net->exclusive;
        one.running = one.job->state == CML_RUNNING;
        if (one.job != refused && (one.running || !(waits || is_busy(c, exclusive))))
            c->candidates[kept++] = one;
    }
    c->candidate_count = kept;
}

static void apply(core *c) {
    for (uint32_t i = 0; i < c->slice_count; i++) {
        const planned *part = c->slices + i;
        job *j = part->job;
        uint32_t end = part->first + part->count;
        int whole = end == j->net->steps[part->step].groups;
        j->step = part->step + (whole ? 1 : 0);
        j->group = whole ? 0 : end;
        j->given_ms += part->ms;
        j->virtual_ms += part->ms / (idle(j) ? 1.0 : j->priority);
        j->last_served_ms = c->now;
        c->report.predicted_ms += part->ms;
    }
    c->report.slices = c->slice_count;
}

static int all_known(const core *c) {
    for (uint32_t i = 0; i < c->slice_count; i++) {
        const curve *known = c->slices[i].job->net->steps[c->slices[i].step].curve;
        if (known == NULL || known->samples < KNOWN) return 0;
    }
    return 1;
}

/* Runs of neighbours that are timed as one: a slice each where something is to be learned of single
 * steps, else a job each; of about the same predicted time where there are too many. */
static void make_groups(core *c) {
    int by_job = all_known(c) && c->frame % APART_EVERY != 0;
    uint32_t runs = 0;
    double target = 0, filled = 0;
    c->group_count = 0;
    for (uint32_t i = 0; i < c->slice_count; i++) {
        target += c->slices[i].ms;
        runs += !by_job || i == 0 || c->slices[i].job->net != c->slices[i - 1].job->net;
    }
    target /= c->max_groups;
    for (uint32_t i = 0; i < c->slice_count; i++) {
        int opens = i == 0;
        if (runs > c->max_groups)
            opens |= filled >= target && c->group_count < c->max_groups;
        else
            opens |= !by_job || (i > 0 && c->slices[i].job->net != c->slices[i - 1].job->net);
        if (opens) {
            c->group_count++;
            filled = 0;
        }
        filled += c->slices[i].ms;
        c->group_ends[c->group_count - 1] = i + 1;
    }
}

/* What the frame runs: decided, begun and taken account of, not encoded yet. `aim` is of a budget that
 * says so itself, else below 0. */
static void fill_frame(core *c, double now, double budget, double aim, int rests, int behind) {
    cml_reason otherwise;
    int again = 1;
    c->now = now;
    if (aim < 0) aim = aim_of(&c->model.tail, budget) / c->back_off;
    c->rate = aim / c->frame_ms;
    memset(&c->report, 0, sizeof c->report);
    c->report.frame = c->frame;
    c->report.now_ms = now;
    c->report.budget_ms = budget;
    c->report.aim_ms = rests || c->rest_due ? 0.0 : aim;
    c->report.measured_ms = -1.0;
    c->left[0] = c->left[1] = HUGE_VAL;
    c->open = 1;
    for (uint32_t i = 0; i < c->live_count; i++)
        if (c->live[i]->state == CML_RUNNING) snapshot(c->live[i]);
    otherwise = gather(c, budget);
    while (again) {
        decide(c, behind, otherwise);
        again = 0;
        for (uint32_t i = 0; i < c->start_count && !again; i++) {
            again = begin_job(c, c->starts[i]) != BEGUN;
            if (again) go_without(c, c->starts[i]);
        }
    }
    apply(c);
    make_groups(c);
}

/* The jobs that are through end, where there is memory for what they leave. */
static void finish_jobs(core *c) {
    uint32_t i = 0;
    while (i < c->live_count) {
        job *j = c->live[i];
        if (j->state == CML_RUNNING && j->step >= j->net->step_count && c->finish(c, j) == BEGUN) {
            end_job(c, j, CML_DONE, "");
            c->report.finished++;
        }
        i += i < c->live_count && c->live[i] == j;
    }
}

/* The frame is encoded: its timings are awaited. */
static void await_frame(core *c, int given) {
    in_flight *f;
    c->encoded = NULL;
    if (c->slice_count == 0) return;
    if (c->flight_count == IN_FLIGHT) c->first_flight = (c->first_flight + 1) % IN_FLIGHT, c->flight_count--;
    f = c->encoded = c->flights + (c->first_flight + c->flight_count) % IN_FLIGHT;
    f->report = c->report;
    f->given = given;
    f->group_count = c->group_count;
    f->part_count = c->slice_count;
    f->arrived = 0;
    memset(f->has, 0, sizeof f->has);
    memcpy(f->ends, c->group_ends, sizeof f->ends);
    for (uint32_t i = 0; i < c->slice_count; i++) {
        f->parts[i].step = c->slices[i].job->net->steps + c->slices[i].step;
        f->parts[i].count = c->slices[i].count;
    }
}

/* ------------------------------------------------------------------ learning (scheduler/feedback.py) */

static void learn_usual(core *c, double interval, double weight) {
    c->usual_ms += weight * (most_of(interval, c->frame_ms) - c->usual_ms);
}

/* Whether a frame was late, perhaps for its networks' sake if it had some. */
static int judge(core *c, double interval, int some) {
    int late = interval > 1.15 * c->usual_ms;
    c->without = some ? 0 : c->without + 1;
    c->since_rest++;
    if (c->without > 1) {
        learn_usual(c, interval, c->without == 2 ? 1.0 : 0.25);
        c->rest_due = 0;
        c->since_rest = 0;
    } else if (c->without == 1 || (late && same(c->back_off, 16.0))) {
        learn_usual(c, interval, 0.25);
    } else if (interval < c->usual_ms) {
        learn_usual(c, interval, 0.1);
    }
    if (late && some && c->since_rest > REST_EVERY)
        c->rest_due = 1;
    else if (late && some)
        c->back_off = least_of(16.0, c->back_off * 1.25);
    else
        c->back_off = 1 + (c->back_off - 1) * pow(0.99, interval / c->frame_ms);
    return late;
}

/* What was guessed of steps is believed where a frame with them was in time. */
static void take_for_granted(core *c, in_flight *f) {
    uint32_t i, guessed = 0;
    double ms = 0;
    for (i = 0; i < f->part_count; i++)
        if (!has_samples(f->parts[i].step)) f->parts[guessed++] = f->parts[i];
    for (i = 0; i < guessed; i++) ms += predict(&c->model, f->parts[i].step, f->parts[i].count);
    if (guessed > 0) learn(&c->memory, &c->model, f->parts, guessed, ms);
}

static void heed_interval(core *c, double now) {
    int first = !c->has_ended;
    double interval = least_of(now - c->ended_ms, 60 * c->frame_ms);
    c->has_ended = 1;
    c->ended_ms = now;
    if (first) return;
    c->intervals++;
    c->interval_ms += most_of(0.1, 1.0 / c->intervals) * (interval - c->interval_ms);
    if (c->wall_clock && !judge(c, interval, c->encoded != NULL) && c->encoded != NULL)
        take_for_granted(c, c->encoded);
}

static void learn_flight(core *c, in_flight *f) {
    uint32_t first = 0;
    int known = !f->given;
    f->report.measured_ms = 0;
    for (uint32_t i = 0; i < f->group_count; i++) f->report.measured_ms += f->ms[i];
    for (uint32_t i = 0; i < f->part_count && known; i++) known = f->parts[i].step->curve->samples >= KNOWN;
    if (known && f->report.predicted_ms > 0.25 * f->report.aim_ms)
        learn_frame(&c->model.tail, f->report.predicted_ms, f->report.measured_ms, f->report.budget_ms);
    for (uint32_t i = 0; i < f->group_count; first = f->ends[i++])
        learn(&c->memory, &c->model, f->parts + first, f->ends[i] - first, f->ms[i]);
    c->measured[c->measured_count++] = f->report;
}

typedef struct timing { /* of a group of a frame */
    uint64_t frame;
    uint32_t group;
    double ms;
} timing;

/* The host has submitted the frame, and these timings have arrived. */
static void end_frame(core *c, const timing *timings, uint32_t count, double now) {
    uint64_t newest = 0; /* one more than the frame */
    c->open = 0;
    c->frame++;
    c->measured_count = 0;
    for (uint32_t i = 0; i < c->max_jobs; i++) {
        job *j = c->jobs + i;
        if (j->begun_now || j->state == CML_DONE) let_makers_go(j); /* nothing is taken back any more */
        j->begun_now = j->touched = 0;
    }
    heed_interval(c, now);
    if (c->wall_clock) {
        c->encoded = NULL;
        return;
    }
    if (c->encoded != NULL) c->flight_count++;
    c->encoded = NULL;
    for (uint32_t i = 0; i < count; i++) {
        if (!(timings[i].ms >= 0) || isinf(timings[i].ms)) continue;
        newest = timings[i].frame + 1 > newest ? timings[i].frame + 1 : newest;
        for (uint32_t k = 0; k < c->flight_count; k++) {
            in_flight *f = c->flights + (c->first_flight + k) % IN_FLIGHT;
            if (f->report.frame != timings[i].frame || timings[i].group >= f->group_count) continue;
            f->arrived += !f->has[timings[i].group];
            f->has[timings[i].group] = 1;
            f->ms[timings[i].group] = timings[i].ms;
        }
    }
    while (c->flight_count > 0 && c->flights[c->first_flight].report.frame < newest) {
        in_flight *f = c->flights + c->first_flight;
        c->first_flight = (c->first_flight + 1) % IN_FLIGHT;
        c->flight_count--;
        if (f->group_count > 0 && f->arrived == f->group_count) learn_flight(c, f);
    }
}

/* The frame will never run: its jobs go on from where they were. `back` gives up what each had begun. */
static void abandon_frame(core *c, void (*back)(core *c, job *j)) {
    if (!c->open) return;
    c->open = 0;
    for (uint32_t i = 0; i < c->max_jobs; i++) {
        job *j = c->jobs + i;
        cml_state now = j->state;
        if (j->touched && now != CML_GONE && now != CML_CANCELLED && now != CML_FAILED) {
            j->state = j->was;
            j->step = j->was_step;
            j->group = j->was_group;
            j->given_ms = j->was_given;
            j->virtual_ms = j->was_virtual;
            if (now == CML_DONE) insert_live(c, j);
            if (back != NULL) back(c, j);
        }
        j->begun_now = j->touched = 0;
    }
    c->encoded = NULL;
    c->frame++;
}

#ifndef CML_CORE_ONLY
/* ------------------------------------------------------------------ the device */

#ifdef _WIN32
#include <windows.h>
#else
#include <time.h>
#include <unistd.h>
#endif

enum { TIMED = 12, RING = 8, AGE = 2, MOST_RESULTS = 8, BOUND_PER_FRAME = 32, SLOT_BYTES = 256, RECEIPTS = 256,
       LEAST_UPLOAD = 64 << 10, UPLOAD_PER_MS = 256 << 10, CHUNK = 1 << 20 };

typedef struct homeward { /* a buffer's bytes on their way home */
    WGPUBuffer buffer;
    uint64_t bytes, frame; /* the frame that copies them */
    int pending, here, failed, dropped;
} homeward;

typedef struct scope { /* what the device says of what it was asked for; with Dawn some time later */
    int waiting, failed;
    WGPUErrorType type;
    char text[240];
} scope;

typedef struct result { /* memory for the outputs of a job */
    struct result *next;
    WGPUBuffer buffer;
    homeward back;
    int used, asked;
} result;

typedef struct input_block { /* a job's inputs from the host, one after the other, are behind it */
    struct input_block *next;
} input_block;

typedef struct device_net {
    cml_net net;
    cml_scheduler *scheduler;
    file f;        /* its bytes go when all is built: what lasts is copied */
    plan p;
    place *places; /* inputs, then outputs */
    binding *updates;
    uint64_t input_bytes, output_bytes, uploaded[SPACES];
    part values[SPACES];
    WGPUBuffer spaces[SPACES], uniforms; /* slices of whole steps, of parts of steps, parameters */
    uint32_t uniform_bytes, ranges, bound; /* parts in this frame, steps that have a bind group */
    uint8_t *range_words;
    WGPUComputePipeline *pipelines; /* by kernel */
    WGPUBindGroupLayout *layouts;
    WGPUBindGroup *groups; /* by step */
    scope said;
    int trusted, built;
    result *results;
    input_block *free_blocks;
} device_net;

typedef struct taken_input { /* from the device: a range, or what a job will have made */
    uint32_t input, output;
    WGPUBuffer buffer;
    uint64_t offset;
    job *maker;
} taken_input;

typedef struct device_job {
    input_block *block;
    uint64_t from_host; /* a bit for each input that is in the block */
    taken_input takes[MOST_TAKEN];
    uint32_t take_count, needs[MOST_TAKEN], need_count;
    result *result;
    uint32_t worked; /* a bit for each slot of the ring whose frame had work of it */
} device_job;

typedef struct ring_slot { /* where a frame's timestamps and its receipt go */
    homeward back;
    int busy;
    uint32_t passes;
} ring_slot;

struct cml_scheduler {
    core core;
    cml_options options;
    WGPUQueue queue;
    WGPULimits limits;
    char name[256];
    int software, has_half, lanes, timed, lost;
    double tick_ms;
    uint32_t each; /* timestamps of a pass: its end, or both */
    WGPUQuerySet queries;
    WGPUBuffer resolved;
    ring_slot ring[RING];
    device_job *jobs;
    cml_slice *told;
    WGPUCommandEncoder encoder;
    double last_ms, budget_ms;
};

static const WGPUBufferUsage TENSORS = WGPUBufferUsage_Storage | WGPUBufferUsage_CopySrc | WGPUBufferUsage_CopyDst;

static double machine_ms(void *unused) {
#ifdef _WIN32
    LARGE_INTEGER now, second;
    QueryPerformanceCounter(&now);
    QueryPerformanceFrequency(&second);
    (void)unused;
    return 1e3 * (double)now.QuadPart / (double)second.QuadPart;
#else
    struct timespec now;
    (void)unused;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return 1e3 * (double)now.tv_sec + 1e-6 * (double)now.tv_nsec;
#endif
}

static double steady_now(cml_scheduler *s) { /* a clock that goes back, or is none, is not believed */
    double now = s->options.now_ms(s->options.now_user);
    if (now > s->last_ms && !isinf(now)) s->last_ms = now;
    return s->last_ms;
}

static uint32_t processors(void) {
#ifdef _WIN32
    const char *count = getenv("NUMBER_OF_PROCESSORS");
    return count != NULL && atoi(count) > 0 ? (uint32_t)atoi(count) : 1;
#else
    long count = sysconf(_SC_NPROCESSORS_ONLN);
    return count > 0 ? (uint32_t)count : 1;
#endif
}

static void poll_device(cml_scheduler *s) { /* let callbacks run; never waits */
#ifdef CML_DAWN
    if (s->options.instance != NULL) wgpuInstanceProcessEvents(s->options.instance);
#else
    wgpuDevicePoll(s->options.device, 0, NULL);
#endif
}

static int same_text(cml_text a, const char *b) {
    return strlen(b) == a.length && memcmp(a.data, b, a.length) == 0;
}

static WGPUStringView view(cml_text text) {
    WGPUStringView found = {text.data, text.length};
    return found;
}

static cml_text text_from(const char *data) {
    cml_text found = {data, strlen(data)};
    return found;
}

static WGPUBuffer new_buffer(cml_scheduler *s, home *counts, WGPUBufferUsage usage, uint64_t bytes) {
    WGPUBufferDescriptor wanted = {0};
    wanted.label = view(text_from("cml"));
    wanted.usage = usage;
    wanted.size = bytes < 256 ? 256 : (bytes + 3) / 4 * 4;
    counts->buffers++;
    return wgpuDeviceCreateBuffer(s->options.device, &wanted);
}

static void drop_buffer(WGPUBuffer *buffer) {
    if (*buffer != NULL) {
        wgpuBufferDestroy(*buffer);
        wgpuBufferRelease(*buffer);
    }
    *buffer = NULL;
}

/* --- errors of the device */

static void said(WGPUPopErrorScopeStatus status, WGPUErrorType type, WGPUStringView message, void *to, void *unused) {
    scope *found = to;
    (void)unused;
    found->waiting--;
    if (status != WGPUPopErrorScopeStatus_Success || type == WGPUErrorType_NoError || found->failed) return;
    found->failed = 1;
    found->type = type;
    snprintf(found->text, sizeof found->text, "%.*s",
             message.length < sizeof found->text ? (int)message.length : (int)sizeof found->text - 1,
             message.data ? message.data : "");
}

static void listen(cml_scheduler *s) {
    wgpuDevicePushErrorScope(s->options.device, WGPUErrorFilter_OutOfMemory);
    wgpuDevicePushErrorScope(s->options.device, WGPUErrorFilter_Validation);
}

static void heard(cml_scheduler *s, scope *to) {
    WGPUPopErrorScopeCallbackInfo info = {0};
    info.mode = WGPUCallbackMode_AllowProcessEvents;
    info.callback = said;
    info.userdata1 = to;
    for (int i = 0; i < 2; i++) {
        to->waiting++;
        wgpuDevicePopErrorScope(s->options.device, info);
    }
}

static cml_status refused(const scope *from, cml_error *error) {
    if (!from->failed) return CML_OK;
    return fail(error, from->type == WGPUErrorType_OutOfMemory ? CML_ERROR_MEMORY : CML_ERROR_DEVICE,
                "the device refused: %s", from->text);
}

/* --- bytes on their way home */

static void came_home(WGPUMapAsyncStatus status, WGPUStringView message, void *to, void *unused) {
    homeward *h = to;
    (void)message;
    (void)unused;
    h->pending = 0;
    h->here = !h->dropped && status == WGPUMapAsyncStatus_Success;
    h->failed = !h->dropped && status != WGPUMapAsyncStatus_Success;
    h->dropped = 0;
}

static void ask_for(homeward *h) {
    WGPUBufferMapCallbackInfo info = {0};
    info.mode = WGPUCallbackMode_AllowProcessEvents;
    info.callback = came_home;
    info.userdata1 = h;
    h->pending = 1;
    wgpuBufferMapAsync(h->buffer, WGPUMapMode_Read, 0, (size_t)h->bytes, info);
}

/* It is not wanted any more; a callback that is still to come finds it dropped. */
static void let_go(homeward *h) {
    if (h->pending) h->dropped = 1;
    if (h->buffer != NULL && (h->pending || h->here)) wgpuBufferUnmap(h->buffer);
    h->here = h->failed = 0;
}

/* Before its memory goes. With a device that never calls back it is better lost than written to. */
static int settled(cml_scheduler *s, homeward *h) {
    int tries = 0;
    let_go(h);
    drop_buffer(&h->buffer);
    while (h->pending && tries++ < 1000) poll_device(s);
    return !h->pending;
}

/* --- loading */

static int lacks(char *why, size_t room, cml_text profile, const char *what, uint64_t wanted, uint64_t got) {
    size_t at = strlen(why);
    snprintf(why + at, room - at, "%s'%.*s' needs %s %llu, the device has %llu", at ? "; " : "", TEXT(profile),
             what, (unsigned long long)wanted, (unsigned long long)got);
    return 0;
}

static int fits(cml_scheduler *s, file *f, const plan *p, char *why, size_t room) {
    const WGPULimits *has = &s->limits;
    uint64_t most = 0, width = has->maxComputeWorkgroupsPerDimension;
#define NEED(what, wanted, got) \
    if ((uint64_t)(got) < (uint64_t)(wanted)) return lacks(why, room, p->profile, what, wanted, got)
    if (has->minStorageBufferOffsetAlignment > p->storage_alignment)
        return lacks(why, room, p->profile, "minStorageBufferOffsetAlignment of at most",
                     p->storage_alignment, has->minStorageBufferOffsetAlignment);
    if (has->minUniformBufferOffsetAlignment > p->uniform_alignment)
        return lacks(why, room, p->profile, "minUniformBufferOffsetAlignment of at most",
                     p->uniform_alignment, has->minUniformBufferOffsetAlignment);
    NEED("maxStorageBufferBindingSize", p->binding_size, has->maxStorageBufferBindingSize);
    NEED("maxBufferSize", p->buffer_size, has->maxBufferSize);
    NEED("maxComputeInvocationsPerWorkgroup", p->invocations, has->maxComputeInvocationsPerWorkgroup);
    NEED("maxComputeWorkgroupStorageSize", p->workgroup_storage, has->maxComputeWorkgroupStorageSize);
    NEED("maxStorageBuffersPerShaderStage", p->storage_buffers, has->maxStorageBuffersPerShaderStage);
    NEED("lanes of a subgroup", p->lanes, s->lanes);
    for (uint32_t i = 0; i < SPACES; i++) NEED("a buffer of bytes", p->spaces[i], has->maxBufferSize);
    for (uint32_t i = 0; i < p->binding_count; i++) {
        uint64_t bytes = u64(p->bindings + (uint64_t)BINDING * i + 16);
        if (bytes > most) most = bytes;
    }
    NEED("a binding of bytes", most, has->maxStorageBufferBindingSize);
    for (uint32_t i = 0; i < p->step_count; i++) {
        const uint8_t *row = p->steps + (uint64_t)STEP * i;
        kernel k;
        kernel_of(f, u32(row), &k);
        NEED("tensors of a kernel", k.tensors, has->maxStorageBuffersPerShaderStage);
        NEED("workgroups", u32(row + 4), width * width);
        NEED("subgroups", k.flags & KERNEL_SUBGROUPS ? 1 : 0, s->lanes);
        NEED("shader-f16", k.flags & KERNEL_HALF ? 1 : 0, s->has_half);
        NEED("kernels in WGSL", f->only_wgsl, k.wgsl.size > 0);
    }
#undef NEED
    return 1;
}

/* The first plan that fits; on a software driver those that are made for one come first. */
static cml_status choose_plan(cml_scheduler *s, file *f, plan *p) {
    char why[400] = "";
    int pass, missing = 0;
    for (pass = s->software ? 0 : 1; pass < 2; pass++)
        for (uint32_t i = 0; (missing = open_plan(f, i, p)) == 0; i++)
            if ((pass == 1 || p->software) && fits(s, f, p, why, pass == 0 ? 1 : sizeof why)) return CML_OK;
    if (missing < 0) return CML_ERROR_CORRUPT;
    return fail(f->error, CML_ERROR_STALE, "no profile of the file fits this device: %s. Cook it for more devices",
                why);
}


static uint32_t stride_of(const cml_scheduler *s) { /* of slices in a uniform buffer */
    return s->limits.minUniformBufferOffsetAlignment > 16 ? s->limits.minUniformBufferOffsetAlignment : 16;
}

static void write_slice(const cml_scheduler *s, uint8_t *to, uint32_t first, uint32_t end) {
    uint32_t words[4] = {0};
    words[0] = first;
    words[1] = end;
    words[2] = s->limits.maxComputeWorkgroupsPerDimension;
    memcpy(to, words, sizeof words);
}

static cml_status take_tables(device_net *n) {
    home *from = &n->net.memory;
    const plan *p = &n->p;
    char *strings = taken(from, n->f.strings.size, 1);
    n->places = taken(from, p->input_count + (uint64_t)p->output_count, sizeof *n->places);
    n->updates = taken(from, 2 * (uint64_t)p->update_count, sizeof *n->updates);
    n->net.steps = taken(from, p->step_count, sizeof *n->net.steps);
    n->net.after = taken(from, (uint64_t)p->step_count + 1, sizeof *n->net.after);
    n->pipelines = taken(from, n->f.kernel_count, sizeof *n->pipelines);
    n->layouts = taken(from, n->f.kernel_count, sizeof *n->layouts);
    n->groups = taken(from, p->step_count, sizeof *n->groups);
    n->range_words = taken(from, n->scheduler->core.max_slices, stride_of(n->scheduler));
    if (from->is_short) return fail(n->f.error, CML_ERROR_MEMORY, "no memory for the network's tables");
    memcpy(strings, n->f.strings.data, (size_t)n->f.strings.size);
    n->p.profile.data = strings + (n->p.profile.data - (const char *)n->f.strings.data);
    n->f.strings.data = (const uint8_t *)strings;
    return CML_OK;
}

static int factor_of(const guess *g, cml_text name, double *factor) {
    for (uint32_t i = 0; i < g->count; i++) {
        cml_text known;
        if (text_of(g->f, g->factors + FACTOR * i, &known) && known.length == name.length &&
            memcmp(known.data, name.data, name.length) == 0) {
            *factor = f64(g->factors + FACTOR * i + 8);
            return 1;
        }
    }
    return 0;
}

/* Of a cost key's second word, else of that up to its last '-', else 1. */
static double factor_of_key(const guess *g, cml_text key) {
    double factor = 1.0;
    cml_text word = {key.data, 0};
    size_t i = 0;
    while (i < key.length && key.data[i] != ' ') i++;
    if (i < key.length) i++;
    word.data = key.data + i;
    while (i < key.length && key.data[i] != ' ') i++;
    word.length = (size_t)(key.data + i - word.data);
    if (factor_of(g, word, &factor)) return factor;
    i = word.length;
    while (i > 0 && word.data[i - 1] != '-') i--;
    word.length = i > 0 ? i - 1 : 0;
    factor_of(g, word, &factor);
    return factor;
}

/* What is needed of the tables when the file's bytes are gone. */
static cml_status read_tables(device_net *n, const guess *g) {
    plan *p = &n->p;
    uint32_t stride = stride_of(n->scheduler);
    uint64_t at = stride * ((uint64_t)p->step_count + n->scheduler->core.max_slices);
    for (uint32_t i = 0; i < p->input_count + p->output_count; i++) {
        uint64_t *end = i < p->input_count ? &n->input_bytes : &n->output_bytes;
        const uint8_t *rows = i < p->input_count ? p->inputs : p->outputs - (uint64_t)TENSOR * p->input_count;
        place_of(&n->f, p, rows + (uint64_t)TENSOR * i, n->places + i);
        n->places[i].among = *end;
        *end += (n->places[i].shape.bytes + 255) / 256 * 256;
    }
    for (uint32_t i = 0; i < 2 * p->update_count; i++)
        binding_of(p, p->updates + (uint64_t)BINDING * i, 4, n->updates + i);
    for (uint32_t i = 0; i < p->step_count; i++) {
        const uint8_t *row = p->steps + (uint64_t)STEP * i;
        step *to = n->net.steps + i;
        cml_text key;
        to->kernel = u32(row);
        to->groups = u32(row + 4);
        to->first_binding = u32(row + 8);
        to->binding_count = u32(row + 12);
        to->params_at = (uint32_t)at;
        to->params_bytes = u32(row + 24);
        at = (at + to->params_bytes + stride - 1) / stride * stride;
        text_of(&n->f, row + 32, &to->op);
        text_of(&n->f, row + 40, &to->title);
        text_of(&n->f, row + 48, &key);
        to->key = key_of(key);
        to->work = most_of(f64(row + 64) / g->flops_per_ms, f64(row + 72) / g->bytes_per_ms);
        to->factor = factor_of_key(g, key);
        if (!n->trusted) to->work = most_of(to->work, 1e-5); /* who says that its work is none is not believed */
    }
    n->net.step_count = p->step_count;
    n->uniform_bytes = (uint32_t)at;
    return at <= n->scheduler->limits.maxBufferSize && at < NONE ? CML_OK
        : fail(n->f.error, CML_ERROR_STALE, "the network's parameters do not fit into one buffer");
}

static cml_status make_buffers(device_net *n) {
    cml_scheduler *s = n->scheduler;
    uint8_t *words = taken(&n->net.memory, n->uniform_bytes, 1);
    if (words == NULL) return fail(n->f.error, CML_ERROR_MEMORY, "no memory for the network's parameters");
    listen(s);
    for (uint32_t i = 0; i < SPACES; i++)
        if (i != OWN || n->p.spaces[OWN] > 0)
            n->spaces[i] = new_buffer(s, &n->net.memory, TENSORS, n->p.spaces[i]);
    n->uniforms = new_buffer(s, &n->net.memory, WGPUBufferUsage_Uniform | WGPUBufferUsage_CopyDst, n->uniform_bytes);
    heard(s, &n->said);
    for (uint32_t i = 0; i < n->p.step_count; i++) {
        const step *of = n->net.steps + i;
        write_slice(s, words + (size_t)stride_of(s) * i, 0, of->groups);
        memcpy(words + of->params_at, n->p.params + u32(n->p.steps + (uint64_t)STEP * i + 20), of->params_bytes);
    }
    if (!n->said.failed) wgpuQueueWriteBuffer(s->queue, n->uniforms, 0, words, n->uniform_bytes);
    given_back(&n->net.memory, words);
    return refused(&n->said, n->f.error);
}

static void free_net(device_net *n) {
    home memory;
    int safe = 1;
    result *r;
    for (r = n->results; r != NULL; r = r->next) {
        safe = settled(n->scheduler, &r->back) && safe;
        drop_buffer(&r->buffer);
    }
    for (uint32_t i = 0; i < n->net.step_count; i++)
        if (n->groups[i] != NULL) wgpuBindGroupRelease(n->groups[i]);
    for (uint32_t i = 0; n->net.steps != NULL && i < n->f.kernel_count; i++) {
        if (n->pipelines[i] != NULL) wgpuComputePipelineRelease(n->pipelines[i]);
        if (n->layouts[i] != NULL) wgpuBindGroupLayoutRelease(n->layouts[i]);
    }
    for (uint32_t i = 0; i < SPACES; i++) drop_buffer(&n->spaces[i]);
    drop_buffer(&n->uniforms);
    for (uint32_t i = 0; n->said.waiting > 0 && i < 1000; i++) poll_device(n->scheduler);
    memory = n->net.memory;
    if (safe && n->said.waiting == 0) all_given_back(&memory);
}

cml_status cml_load(cml_scheduler *s, const void *bytes, size_t size, uint32_t flags, cml_net **net, cml_error *error) {
    home memory = {{NULL, NULL, NULL}, NULL, 0, 0, 0, 0, 0};
    cml_error unheard;
    device_net *n;
    cml_status status;
    guess g;
    memory.hook = s->options.allocator;
    *net = NULL;
    n = taken(&memory, 1, sizeof *n);
    if (n == NULL) return fail(error, CML_ERROR_MEMORY, "no memory for a network");
    n->net.memory = memory;
    n->net.device = n;
    n->scheduler = s;
    n->trusted = (flags & CML_TRUSTED) != 0;
    n->f = file_of(bytes, size, &n->net.memory, error ? error : &unheard);
#ifdef CML_DAWN
    n->f.only_wgsl = 1;
#else
    n->f.only_wgsl = !n->trusted;
#endif
    status = open_file(&n->f);
    if (status == CML_OK) status = open_kernels(&n->f);
    if (status == CML_OK) status = choose_plan(s, &n->f, &n->p);
    if (status == CML_OK) status = plan_values(&n->f, &n->p, n->values);
    if (status == CML_OK) status = guess_of(&n->f, text_from(s->name), &g);
    if (status == CML_OK) status = take_tables(n);
    if (status == CML_OK) status = read_tables(n, &g);
    if (status == CML_OK) status = make_buffers(n);
    n->f.error = NULL;
    if (status != CML_OK) {
        free_net(n);
        return status;
    }
    n->net.launch_ms = g.launch_ms;
    n->net.exclusive = NONE;
    n->net.guessed = g.count > 0;
    *net = &n->net;
    return CML_OK;
}

static WGPUShaderModule shader_of(device_net *n, const kernel *k, const code *c, const uint8_t *words) {
    WGPUShaderModuleDescriptor wanted = {0};
    WGPUShaderSourceWGSL text = {0};
    wanted.label = view(k->label);
    text.chain.sType = WGPUSType_ShaderSourceWGSL;
    text.code.data = (const char *)words;
    text.code.length = c->size;
    wanted.nextInChain = &text.chain;
#ifndef CML_DAWN
    if (c == &k->spirv) {
        WGPUShaderSourceSPIRV spirv;
        memset(&spirv, 0, sizeof spirv);
        spirv.chain.sType = WGPUSType_ShaderSourceSPIRV;
        spirv.codeSize = c->size / 4;
        spirv.code = (const uint32_t *)(const void *)words;
        wanted.nextInChain = &spirv.chain;
        return n->trusted && k->flags & KERNEL_TRUSTED
            ? wgpuDeviceCreateShaderModuleTrusted(n->scheduler->options.device, &wanted, 0)
            : wgpuDeviceCreateShaderModule(n->scheduler->options.device, &wanted);
    }
    if (n->trusted && k->flags & KERNEL_TRUSTED)
        return wgpuDeviceCreateShaderModuleTrusted(n->scheduler->options.device, &wanted, 0);
#endif
    return wgpuDeviceCreateShaderModule(n->scheduler->options.device, &wanted);
}

static cml_status build_kernel(device_net *n, uint32_t index, cml_error *error) {
    WGPUDevice device = n->scheduler->options.device;
    WGPUBindGroupLayoutEntry entries[66];
    WGPUBindGroupLayoutDescriptor bound = {0};
    WGPUPipelineLayoutDescriptor whole = {0};
    WGPUComputePipelineDescriptor wanted = {0};
    WGPUPipelineLayout layout;
    WGPUShaderModule module;
    const code *c;
    uint8_t *words;
    kernel k;
    n->f.error = error;
    kernel_of(&n->f, index, &k);
    c = k.spirv.size > 0 && !n->f.only_wgsl ? &k.spirv : &k.wgsl;
    words = unpacked_code(&n->f, &k, c);
    if (words == NULL) return CML_ERROR_CORRUPT;
    memset(entries, 0, sizeof entries);
    for (uint32_t i = 0; i < k.tensors + 2; i++) {
        entries[i].binding = i;
        entries[i].visibility = WGPUShaderStage_Compute;
        entries[i].buffer.type = i < 2 ? WGPUBufferBindingType_Uniform : WGPUBufferBindingType_Storage;
        entries[i].buffer.hasDynamicOffset = i == 0;
        entries[i].buffer.minBindingSize = i == 0 ? 16 : i == 1 ? k.params : 0;
    }
    bound.entryCount = k.tensors + 2;
    bound.entries = entries;
    listen(n->scheduler);
    n->layouts[index] = wgpuDeviceCreateBindGroupLayout(device, &bound);
    whole.bindGroupLayoutCount = 1;
    whole.bindGroupLayouts = n->layouts + index;
    layout = wgpuDeviceCreatePipelineLayout(device, &whole);
    module = shader_of(n, &k, c, words);
    wanted.label = view(k.label);
    wanted.layout = layout;
    wanted.compute.module = module;
    wanted.compute.entryPoint = view(text_from("main"));
    if (layout != NULL && module != NULL) n->pipelines[index] = wgpuDeviceCreateComputePipeline(device, &wanted);
    heard(n->scheduler, &n->said);
    if (module != NULL) wgpuShaderModuleRelease(module);
    if (layout != NULL) wgpuPipelineLayoutRelease(layout);
    given_back(&n->net.memory, words);
    n->net.memory.pipelines++;
    return refused(&n->said, error);
}

static void bind_step(device_net *n, uint32_t index) {
    const step *of = n->net.steps + index;
    const uint8_t *rows = n->p.bindings + (uint64_t)BINDING * of->first_binding;
    WGPUBindGroupEntry entries[66];
    WGPUBindGroupDescriptor wanted = {0};
    memset(entries, 0, sizeof entries);
    for (uint32_t i = 0; i < of->binding_count + 2; i++) {
        entries[i].binding = i;
        if (i < 2) {
            entries[i].buffer = n->uniforms;
            entries[i].offset = i == 0 ? 0 : of->params_at;
            entries[i].size = i == 0 ? 16 : of->params_bytes;
        } else {
            binding at;
            binding_of(&n->p, rows + BINDING * (i - 2), 4, &at);
            entries[i].buffer = n->spaces[at.space];
            entries[i].offset = at.offset;
            entries[i].size = at.bytes;
        }
    }
    wanted.layout = n->layouts[of->kernel];
    wanted.entryCount = of->binding_count + 2;
    wanted.entries = entries;
    n->groups[index] = wgpuDeviceCreateBindGroup(n->scheduler->options.device, &wanted);
    n->net.memory.bind_groups++;
}

/* Upload at most so many bytes of weights; whether all are there. */
static int upload(device_net *n, uint64_t bytes) {
    for (uint32_t i = WEIGHTS; i < SPACES; i++)
        while (n->uploaded[i] < n->values[i].size) {
            uint64_t left = n->values[i].size - n->uploaded[i], chunk = left < CHUNK ? left : CHUNK;
            uint8_t tail[4] = {0};
            if (bytes == 0) return 0;
            chunk = chunk < bytes ? chunk : bytes;
            if (chunk >= 4) chunk = chunk / 4 * 4;
            else memcpy(tail, n->values[i].data + n->uploaded[i], (size_t)(left < 4 ? left : 4));
            wgpuQueueWriteBuffer(n->scheduler->queue, n->spaces[i], n->uploaded[i],
                                 chunk >= 4 ? n->values[i].data + n->uploaded[i] : tail, chunk >= 4 ? (size_t)chunk : 4);
            n->uploaded[i] += chunk >= 4 ? chunk : left < 4 ? left : 4;
            bytes -= chunk < bytes ? chunk : bytes;
        }
    return 1;
}

/* Get on with what the network lacks, for about so long, but at least a step of it. */
static cml_status advance(device_net *n, double ms, uint64_t bytes, uint32_t groups, cml_error *error) {
    cml_scheduler *s = n->scheduler;
    double end = s->options.now_ms(s->options.now_user) + ms;
    cml_status status = refused(&n->said, error);
    if (n->built || status != CML_OK || !upload(n, bytes)) return n->built || status != CML_OK ? status : CML_PENDING;
    while (n->bound < n->p.step_count) {
        uint32_t kernel_index = n->net.steps[n->bound].kernel;
        if (n->layouts[kernel_index] == NULL) {
            status = build_kernel(n, kernel_index, error);
            if (status != CML_OK) return status;
            if (s->options.now_ms(s->options.now_user) >= end) return CML_PENDING;
        }
        if (n->pipelines[kernel_index] == NULL || groups-- == 0) return refused(&n->said, error) ? CML_ERROR_DEVICE : CML_PENDING;
        listen(s);
        bind_step(n, n->bound++);
        heard(s, &n->said);
        if ((status = refused(&n->said, error)) != CML_OK) return status;
    }
    n->built = n->said.waiting == 0;
    return n->built ? CML_OK : CML_PENDING;
}

cml_status cml_build(cml_net *net, double ms, cml_error *error) {
    cml_status status = advance(net->device, ms, UINT64_MAX, UINT32_MAX, error);
    poll_device(net->device->scheduler);
    return status;
}

static cml_status shape_at(const place *places, uint32_t count, uint32_t index, cml_shape *shape) {
    if (index >= count) return CML_ERROR_INPUT;
    *shape = places[index].shape;
    return CML_OK;
}

cml_status cml_input_shape(const cml_net *net, uint32_t index, cml_shape *shape) {
    return shape_at(net->device->places, net->device->p.input_count, index, shape);
}

cml_status cml_output_shape(const cml_net *net, uint32_t index, cml_shape *shape) {
    const device_net *n = net->device;
    return shape_at(n->places + n->p.input_count, n->p.output_count, index, shape);
}

cml_net_info cml_info(const cml_net *net) {
    const plan *p = &net->device->p;
    cml_net_info found;
    found.profile = p->profile;
    found.steps = p->step_count;
    found.arena_bytes = p->spaces[ARENA];
    found.weights_bytes = p->spaces[WEIGHTS];
    found.own_bytes = p->spaces[OWN];
    found.flops = p->flops;
    found.gas = p->gas;
    return found;
}

/* --- jobs on the device */

static device_job *on_device(cml_scheduler *s, const job *j) { return s->jobs + (j - s->core.jobs); }

static void drop_inputs(cml_scheduler *s, job *j) {
    device_job *d = on_device(s, j);
    device_net *n = j->net->device;
    if (d->block != NULL) {
        d->block->next = n->free_blocks;
        n->free_blocks = d->block;
        d->block = NULL;
    }
    while (d->take_count > 0)
        if (d->takes[--d->take_count].buffer != NULL) wgpuBufferRelease(d->takes[d->take_count].buffer);
}

static void drop_result(cml_scheduler *s, job *j) {
    device_job *d = on_device(s, j);
    if (d->result != NULL) {
        let_go(&d->result->back);
        d->result->used = d->result->asked = 0;
    }
    d->result = NULL;
}

void cml_unload(cml_scheduler *s, cml_net *net) {
    cml_net **at = &s->core.nets;
    for (uint32_t i = 0; i < s->core.max_jobs; i++)
        if (s->core.jobs[i].state != CML_GONE && s->core.jobs[i].net == net) {
            end_job(&s->core, s->core.jobs + i, CML_CANCELLED, "its network was unloaded");
            drop_inputs(s, s->core.jobs + i);
            drop_result(s, s->core.jobs + i);
        }
    while (*at != NULL && *at != net) at = &(*at)->next;
    if (*at != NULL) *at = net->next;
    s->core.flight_count = 0; /* their steps may be this one's */
    free_net(net->device);
}

/* Memory for a job's outputs: what another one left, else new. */
static int take_result(cml_scheduler *s, job *j) {
    device_net *n = j->net->device;
    device_job *d = on_device(s, j);
    uint32_t count = 0;
    result *r;
    if (d->result != NULL) return BEGUN;
    for (r = n->results; r != NULL && (r->used || r->back.pending); r = r->next) count++;
    if (r == NULL) {
        if (count >= MOST_RESULTS || (r = taken(&n->net.memory, 1, sizeof *r)) == NULL) return WAITS;
        listen(s);
        r->buffer = new_buffer(s, &n->net.memory, TENSORS, n->output_bytes);
        heard(s, &n->said);
        if (n->said.failed || r->buffer == NULL) {
            given_back(&n->net.memory, r);
            end_job(&s->core, j, CML_FAILED, "the device has no memory for its outputs");
            return REFUSED;
        }
        r->next = n->results;
        n->results = r;
    }
    r->used = 1;
    d->result = r;
    return BEGUN;
}

static int net_ready(core *c, cml_net *net) {
    (void)c;
    return net->device->built;
}

static void prepare_net(core *c, cml_net *net, double ms) {
    cml_error error;
    uint64_t bytes = (uint64_t)(ms * UPLOAD_PER_MS);
    cml_status status = advance(net->device, ms, bytes < LEAST_UPLOAD ? LEAST_UPLOAD : bytes, BOUND_PER_FRAME, &error);
    for (uint32_t i = c->max_jobs; status > CML_PENDING && i > 0; i--)
        if (c->jobs[i - 1].net == net) end_job(c, c->jobs + i - 1, CML_FAILED, error.text);
}

static int start_on_device(core *c, job *j) {
    cml_scheduler *s = (cml_scheduler *)c; /* its first member */
    device_net *n = j->net->device;
    device_job *d = on_device(s, j);
    int came = take_result(s, j);
    if (came != BEGUN) return came;
    for (uint32_t i = 0; i < n->p.input_count; i++)
        if (d->from_host >> i & 1 && n->places[i].shape.bytes > 0)
            wgpuQueueWriteBuffer(s->queue, n->spaces[n->places[i].at.space], n->places[i].at.offset,
                                 (uint8_t *)(d->block + 1) + n->places[i].among, (size_t)n->places[i].shape.bytes);
    for (uint32_t i = 0; i < d->take_count; i++) {
        const taken_input *t = d->takes + i;
        const place *to = n->places + t->input;
        result *made = t->maker == NULL ? NULL : on_device(s, t->maker)->result;
        uint64_t at = made == NULL ? t->offset
            : t->maker->net->device->places[t->maker->net->device->p.input_count + t->output].among;
        if (to->shape.bytes > 0)
            wgpuCommandEncoderCopyBufferToBuffer(s->encoder, made == NULL ? t->buffer : made->buffer, at,
                                                 n->spaces[to->at.space], to->at.offset, to->shape.bytes);
    }
    return BEGUN;
}

static int finish_on_device(core *c, job *j) {
    cml_scheduler *s = (cml_scheduler *)c;
    device_net *n = j->net->device;
    int came = take_result(s, j);
    if (came != BEGUN) return came;
    for (uint32_t i = n->p.input_count; i < n->p.input_count + n->p.output_count; i++)
        if (n->places[i].shape.bytes > 0)
            wgpuCommandEncoderCopyBufferToBuffer(s->encoder, n->spaces[n->places[i].at.space], n->places[i].at.offset,
                                                 on_device(s, j)->result->buffer, n->places[i].among,
                                                 n->places[i].shape.bytes);
    for (uint32_t i = 0; i < n->p.update_count; i++) {
        const binding *from = n->updates + 2 * i, *to = from + 1;
        wgpuCommandEncoderCopyBufferToBuffer(s->encoder, n->spaces[from->space], from->offset, n->spaces[to->space],
                                             to->offset, from->bytes < to->bytes ? from->bytes : to->bytes);
    }
    return BEGUN;
}

static void ended_on_device(core *c, job *j) {
    cml_scheduler *s = (cml_scheduler *)c;
    if (j->state == CML_DONE) return; /* which may be taken back with its frame */
    drop_inputs(s, j);
    drop_result(s, j);
}

static void back_on_device(core *c, job *j) { /* its frame never ran */
    if (j->state == CML_QUEUED) drop_result((cml_scheduler *)c, j);
}

static job *found(cml_scheduler *s, cml_job handle) {
    uint32_t index = (uint32_t)handle - 1;
    job *j = s->core.jobs + index;
    return index < s->core.max_jobs && j->generation == handle >> 32 && j->state != CML_GONE ? j : NULL;
}

static cml_job handle_of(const cml_scheduler *s, const job *j) {
    return (cml_job)j->generation << 32 | ((uint32_t)(j - s->core.jobs) + 1);
}

/* Places of jobs that were released and that nobody takes from any more are free. */
static void reclaim(cml_scheduler *s) {
    for (uint32_t i = 0; i < s->core.max_jobs && !s->core.open; i++) {
        job *j = s->core.jobs + i;
        if (j->state == CML_GONE || !over(j) || !j->released || j->takers > 0) continue;
        drop_result(s, j);
        j->state = CML_GONE;
        j->generation++;
    }
}

static int named(const place *places, uint32_t count, const char *name) {
    for (uint32_t i = 0; i < count; i++)
        if (name != NULL && same_text(places[i].shape.name, name)) return (int)i;
    return -1;
}

/* One input of a job to be: what is wrong with it, or how it will come. */
static cml_status accept_input(cml_scheduler *s, device_net *n, const cml_input *in, device_job *d, cml_error *error) {
    int at = named(n->places, n->p.input_count, in->name), output;
    const cml_shape *shape = &n->places[at < 0 ? 0 : at].shape;
    taken_input *t = d->takes + d->take_count;
    uint32_t i;
    if (at < 0) return fail(error, CML_ERROR_INPUT, "the network has no input '%s'", in->name ? in->name : "");
    for (i = 0; i < d->take_count; i++)
        if (d->takes[i].input == (uint32_t)at) break;
    if (d->from_host >> at & 1 || i < d->take_count)
        return fail(error, CML_ERROR_INPUT, "input '%s' is given twice", in->name);
    if (in->data != NULL || shape->bytes == 0) {
        if (shape->layout != CML_PLAIN || in->bytes != shape->bytes)
            return fail(error, CML_ERROR_INPUT, "input '%s': wanted %llu bytes, got %llu", in->name,
                        (unsigned long long)shape->bytes, (unsigned long long)in->bytes);
        d->from_host |= (uint64_t)1 << at;
        memcpy((uint8_t *)(d->block + 1) + n->places[at].among, in->data, in->bytes);
        return CML_OK;
    }
    if (d->take_count == MOST_TAKEN) return fail(error, CML_ERROR_INPUT, "a job takes at most %d tensors", MOST_TAKEN);
    memset(t, 0, sizeof *t);
    t->input = (uint32_t)at;
    t->offset = in->offset;
    if (in->buffer != NULL) {
        uint64_t size = wgpuBufferGetSize(in->buffer);
        if (in->offset % 4 != 0 || in->offset > size || shape->bytes > size - in->offset)
            return fail(error, CML_ERROR_INPUT, "input '%s': %llu bytes at %llu are not in its buffer of %llu", in->name,
                        (unsigned long long)shape->bytes, (unsigned long long)in->offset, (unsigned long long)size);
        t->buffer = in->buffer;
    } else {
        const device_net *m;
        const cml_shape *from;
        t->maker = found(s, in->job);
        if (t->maker == NULL || t->maker->released || t->maker->state == CML_CANCELLED || t->maker->state == CML_FAILED)
            return fail(error, CML_ERROR_INPUT, "input '%s' has no data, or its job has no outputs", in->name);
        m = t->maker->net->device;
        output = named(m->places + m->p.input_count, m->p.output_count, in->output);
        if (output < 0) return fail(error, CML_ERROR_INPUT, "input '%s': the job has no such output", in->name);
        from = &m->places[m->p.input_count + (uint32_t)output].shape;
        if (from->bytes != shape->bytes || from->type != shape->type || from->layout != shape->layout)
            return fail(error, CML_ERROR_INPUT, "input '%s': the job's output is of another shape or type", in->name);
        t->output = (uint32_t)output;
    }
    d->take_count++;
    return CML_OK;
}

cml_status cml_submit(cml_scheduler *s, cml_net *net, const cml_input *inputs, size_t count,
                      const cml_job_options *options, cml_job *handle, cml_error *error) {
    static const cml_job_options usual = {1.0, 0.0, NULL};
    device_net *n = net->device;
    job *j = free_place(&s->core);
    device_job made = {0};
    cml_status status = CML_OK;
    uint32_t generation;
    *handle = 0;
    options = options ? options : &usual;
    if (s->lost) return fail(error, CML_ERROR_DEVICE, "the device was lost");
    if (!(options->deadline_ms >= 0) || isinf(options->deadline_ms + options->priority) ||
        !(options->priority >= 0 || same(options->priority, CML_IDLE)))
        return fail(error, CML_ERROR_INPUT, "the priority or the deadline is no number of 0 or more");
    if (options->slot != NULL && strlen(options->slot) >= SLOT_NAME)
        return fail(error, CML_ERROR_INPUT, "the slot's name is longer than %d bytes", SLOT_NAME - 1);
    if (j == NULL) return fail(error, CML_ERROR_FULL, "there are %u jobs: release some", s->core.max_jobs);
    if (count != n->p.input_count) return fail(error, CML_ERROR_INPUT, "the network has %u inputs, got %u",
                                               n->p.input_count, (unsigned)count);
    made.block = n->free_blocks;
    if (made.block == NULL) made.block = taken(&n->net.memory, sizeof *made.block + n->input_bytes, 1);
    else n->free_blocks = made.block->next;
    if (made.block == NULL || !adopt(&s->core, net)) status = fail(error, CML_ERROR_MEMORY, "no memory for a job");
    for (uint32_t i = 0; i < count && status == CML_OK; i++) status = accept_input(s, n, inputs + i, &made, error);
    if (status != CML_OK) {
        if (made.block != NULL) {
            made.block->next = n->free_blocks;
            n->free_blocks = made.block;
        }
        return status;
    }
    generation = j->generation + (j->state != CML_GONE); /* whoever was here and failed is forgotten */
    memset(j, 0, sizeof *j);
    j->generation = generation;
    j->number = s->core.numbers++;
    j->net = net;
    j->priority = options->priority < 0 ? 0.0 : options->priority > 0 ? options->priority : 1.0;
    j->last_served_ms = steady_now(s);
    j->dated = options->deadline_ms > 0;
    j->deadline_at = j->last_served_ms + options->deadline_ms;
    snprintf(j->slot, sizeof j->slot, "%s", options->slot ? options->slot : "");
    *on_device(s, j) = made;
    for (uint32_t i = 0; i < made.take_count; i++) {
        if (made.takes[i].buffer != NULL) wgpuBufferAddRef(made.takes[i].buffer);
        if (made.takes[i].maker == NULL) continue;
        made.takes[i].maker->takers++;
        j->makers[j->maker_count++] = made.takes[i].maker;
    }
    enlist(&s->core, j);
    *handle = handle_of(s, j);
    return CML_OK;
}

cml_job_info cml_job_state(cml_scheduler *s, cml_job handle) {
    job *j = found(s, handle);
    cml_job_info told = {CML_GONE, 0, 0.0, 0.0, ""};
    core *c = &s->core;
    double left, ahead = 0;
    uint32_t i;
    if (j == NULL) return told;
    told.state = j->state;
    told.paused = j->paused;
    told.error = j->error;
    told.progress = j->state == CML_DONE;
    if (over(j)) return told;
    left = remaining_ms(c, j);
    told.progress = left + j->given_ms > 0 ? j->given_ms / (left + j->given_ms) : 0.0;
    for (c->candidate_count = i = 0; i < c->live_count; i++)
        if (!c->live[i]->paused || c->live[i] == j) {
            c->candidates[c->candidate_count].job = c->live[i];
            c->candidates[c->candidate_count++].remaining = remaining_ms(c, c->live[i]);
        }
    c->now = steady_now(s);
    put_in_order(c);
    for (i = 0; c->candidates[i].job != j; i++) ahead += c->candidates[i].remaining;
    told.eta_ms = (ahead + left) / most_of(c->rate, 1e-9) + c->frame_ms;
    return told;
}

void cml_cancel(cml_scheduler *s, cml_job handle) {
    job *j = found(s, handle);
    if (j != NULL) end_job(&s->core, j, CML_CANCELLED, "cancelled by the host");
}

void cml_pause(cml_scheduler *s, cml_job handle, int paused) {
    job *j = found(s, handle);
    if (j != NULL) j->paused = paused;
}

void cml_release(cml_scheduler *s, cml_job handle) {
    job *j = found(s, handle);
    if (j == NULL) return;
    end_job(&s->core, j, CML_CANCELLED, "released by the host");
    j->released = 1;
    reclaim(s);
}

/* The output of a job that is done, and its place; NULL otherwise. */
static const place *output_of(cml_scheduler *s, job *j, const char *name) {
    const device_net *n;
    int at;
    if (j == NULL || j->state != CML_DONE || j->released || on_device(s, j)->result == NULL) return NULL;
    n = j->net->device;
    at = named(n->places + n->p.input_count, n->p.output_count, name);
    return at < 0 ? NULL : n->places + n->p.input_count + at;
}

cml_status cml_tensor_of(cml_scheduler *s, cml_job handle, const char *output, cml_tensor *tensor) {
    job *j = found(s, handle);
    const place *from = output_of(s, j, output);
    if (j != NULL && !over(j)) return CML_PENDING;
    if (from == NULL) return CML_ERROR_INPUT;
    tensor->buffer = on_device(s, j)->result->buffer;
    tensor->offset = from->among;
    tensor->bytes = from->shape.bytes;
    tensor->shape = from->shape;
    return CML_OK;
}

cml_status cml_read(cml_scheduler *s, cml_job handle, const char *output, void *data, size_t bytes, cml_error *error) {
    job *j = found(s, handle);
    const place *from = output_of(s, j, output);
    const void *here;
    result *r;
    if (j != NULL && !over(j)) {
        j->wants_read = 1;
        return CML_PENDING;
    }
    if (from == NULL || from->shape.layout != CML_PLAIN || bytes != from->shape.bytes)
        return fail(error, CML_ERROR_INPUT, "no plain output '%s' of %llu bytes: %s", output, (unsigned long long)bytes,
                    j != NULL && j->error[0] ? j->error : "see cml_output_shape");
    r = on_device(s, j)->result;
    j->wants_read = 1;
    if (r->back.failed) return fail(error, CML_ERROR_DEVICE, "the readback failed: the device is lost");
    if (!r->back.here) return CML_PENDING;
    here = bytes ? wgpuBufferGetConstMappedRange(r->back.buffer, (size_t)from->among, bytes) : data;
    if (here == NULL) return fail(error, CML_ERROR_DEVICE, "the readback failed: the buffer is not mapped");
    if (bytes > 0) memcpy(data, here, bytes);
    return CML_OK;
}

/* --- frames */

static void request_reads(cml_scheduler *s) {
    for (uint32_t i = 0; i < s->core.max_jobs; i++) {
        job *j = s->core.jobs + i;
        result *r = j->state == CML_DONE ? on_device(s, j)->result : NULL;
        device_net *n;
        if (r == NULL || !j->wants_read || r->asked || r->back.pending) continue;
        n = j->net->device;
        if (r->back.buffer == NULL)
            r->back.buffer = new_buffer(s, &n->net.memory, WGPUBufferUsage_MapRead | WGPUBufferUsage_CopyDst, n->output_bytes);
        if (r->back.buffer == NULL) continue;
        r->back.bytes = n->output_bytes < 256 ? 256 : n->output_bytes;
        r->back.frame = s->core.frame;
        r->asked = 1;
        wgpuCommandEncoderCopyBufferToBuffer(s->encoder, r->buffer, 0, r->back.buffer, 0, r->back.bytes);
    }
}

static ring_slot *free_slot(cml_scheduler *s) {
    for (uint32_t i = 0; i < RING; i++)
        if (!s->ring[i].busy && !s->ring[i].back.pending) return s->ring + i;
    return NULL;
}

/* A pass with the slot's next timestamps, where there are any. */
static WGPUComputePassEncoder begin_pass(cml_scheduler *s, ring_slot *slot) {
    WGPUComputePassDescriptor wanted = {0};
    WGPUPassTimestampWrites writes = {0};
    if (slot != NULL && s->timed) {
        uint32_t at = s->each * ((uint32_t)(slot - s->ring) * (TIMED + 1) + slot->passes++);
        writes.querySet = s->queries;
        writes.beginningOfPassWriteIndex = s->each == 2 ? at : WGPU_QUERY_SET_INDEX_UNDEFINED;
        writes.endOfPassWriteIndex = s->each == 2 ? at + 1 : at;
        wanted.timestampWrites = &writes;
    }
    return wgpuCommandEncoderBeginComputePass(s->encoder, &wanted);
}

static void end_pass(WGPUComputePassEncoder pass) {
    wgpuComputePassEncoderEnd(pass);
    wgpuComputePassEncoderRelease(pass);
}

static void dispatch(cml_scheduler *s, WGPUComputePassEncoder pass, const planned *part) {
    device_net *n = part->job->net->device;
    const step *of = n->net.steps + part->step;
    uint32_t width = s->limits.maxComputeWorkgroupsPerDimension, stride = stride_of(s), slice = stride * part->step;
    if (part->count != of->groups) {
        write_slice(s, n->range_words + (size_t)stride * n->ranges, part->first, part->first + part->count);
        slice = stride * (n->p.step_count + n->ranges++);
    }
    wgpuComputePassEncoderSetPipeline(pass, n->pipelines[of->kernel]);
    wgpuComputePassEncoderSetBindGroup(pass, 0, n->groups[part->step], 1, &slice);
    wgpuComputePassEncoderDispatchWorkgroups(pass, part->count <= width ? part->count : width,
                                             part->count <= width ? 1 : (part->count - 1) / width + 1, 1);
}

/* The slices, a pass for each group that is timed. */
static void encode_slices(cml_scheduler *s) {
    core *c = &s->core;
    ring_slot *slot = c->slice_count > 0 ? free_slot(s) : NULL;
    uint32_t group, i = 0, at;
    if (slot != NULL) {
        slot->busy = 1;
        slot->passes = 0;
        slot->back.frame = c->frame;
        if (s->each == 1 && s->timed) end_pass(begin_pass(s, slot)); /* each is timed from the end of the one before */
    }
    for (group = 0; group < c->group_count; group++) {
        WGPUComputePassEncoder pass = begin_pass(s, slot);
        for (; i < c->group_ends[group]; i++) {
            dispatch(s, pass, c->slices + i);
            if (slot != NULL) on_device(s, c->slices[i].job)->worked |= 1u << (slot - s->ring);
        }
        end_pass(pass);
    }
    for (i = 0; i < c->slice_count; i++) {
        device_net *n = c->slices[i].job->net->device;
        if (n->ranges > 0)
            wgpuQueueWriteBuffer(s->queue, n->uniforms, (uint64_t)stride_of(s) * n->p.step_count, n->range_words,
                                 (size_t)stride_of(s) * n->ranges);
        n->ranges = 0;
    }
    if (slot == NULL) return;
    at = (uint32_t)(slot - s->ring) * SLOT_BYTES;
    if (slot->passes > 0) {
        wgpuCommandEncoderResolveQuerySet(s->encoder, s->queries, s->each * (uint32_t)(slot - s->ring) * (TIMED + 1),
                                          s->each * slot->passes, s->resolved, at);
        wgpuCommandEncoderCopyBufferToBuffer(s->encoder, s->resolved, at, slot->back.buffer, 0, 8 * s->each * slot->passes);
    }
    wgpuCommandEncoderCopyBufferToBuffer(s->encoder, s->resolved, RING * SLOT_BYTES + 4 * (c->frame % RECEIPTS),
                                         slot->back.buffer, SLOT_BYTES - 4, 4);
}

const cml_report *cml_encode(cml_scheduler *s, WGPUCommandEncoder encoder, double budget_ms) {
    core *c = &s->core;
    double start = s->options.now_ms(s->options.now_user);
    uint32_t behind = 0;
    if (c->open || s->lost) {
        c->report.reason = s->lost ? CML_DEVICE_ERROR : CML_FRAME_NOT_ENDED;
        c->report.slices = c->report.finished = c->slice_count = 0;
        return &c->report;
    }
    s->encoder = encoder;
    for (uint32_t i = 0; i < RING; i++) behind += s->ring[i].back.pending && !s->ring[i].back.dropped;
    if (budget_ms >= 0 && !isinf(budget_ms)) s->budget_ms = budget_ms;
    fill_frame(c, steady_now(s), s->budget_ms, -1.0, 0, behind >= s->options.max_frames_in_flight);
    encode_slices(s);
    finish_jobs(c);
    request_reads(s);
    await_frame(c, 0);
    for (uint32_t i = 0; i < c->slice_count; i++) {
        const planned *from = c->slices + i;
        cml_slice *to = s->told + i;
        to->job = handle_of(s, from->job);
        to->step = from->step;
        to->first = from->first;
        to->count = from->count;
        to->predicted_ms = from->ms;
        to->op = from->job->net->steps[from->step].op;
        to->title = from->job->net->steps[from->step].title;
    }
    c->report.cpu_ms = s->options.now_ms(s->options.now_user) - start;
    if (c->encoded != NULL) c->encoded->report = c->report;
    return &c->report;
}

const cml_slice *cml_slices(const cml_scheduler *s) { return s->told; }

/* A frame was ended and never ran: who had work in it, and who took from them, has wrong results. */
static void fail_harmed(cml_scheduler *s, uint32_t slot) {
    for (uint32_t i = 0; i < s->core.max_jobs; i++) {
        job *j = s->core.jobs + i;
        if (j->state == CML_GONE || !(s->jobs[i].worked >> slot & 1)) continue;
        end_job(&s->core, j, CML_FAILED, "");
        if (j->state == CML_CANCELLED) continue;
        j->state = CML_FAILED; /* even where it was done */
        snprintf(j->error, sizeof j->error, "a frame was encoded and never submitted: its result would be wrong. "
                 "Submit every encoder, or call cml_abandon_frame()");
        drop_result(s, j);
    }
}

/* What has arrived of a slot: its timings, or that its frame never ran. */
static uint32_t take_slot(cml_scheduler *s, ring_slot *slot, timing *to) {
    const uint8_t *data = wgpuBufferGetConstMappedRange(slot->back.buffer, 0, SLOT_BYTES);
    uint32_t index = (uint32_t)(slot - s->ring), count = 0;
    int ran = data != NULL && u32(data + SLOT_BYTES - 4) == slot->back.frame % RECEIPTS + 1;
    if (data != NULL && !ran) fail_harmed(s, index);
    for (uint32_t i = s->each == 1 ? 1 : 0; ran && i < slot->passes; i++) {
        uint64_t begin, end;
        memcpy(&begin, data + (s->each == 1 ? 8 * (i - 1) : 16 * i), 8);
        memcpy(&end, data + (s->each == 1 ? 8 * i : 16 * i + 8), 8);
        to[count].frame = slot->back.frame;
        to[count].group = count;
        to[count].ms = end > begin ? (double)(end - begin) * s->tick_ms : 0.0;
        count++;
    }
    let_go(&slot->back);
    slot->busy = 0;
    for (uint32_t i = 0; i < s->core.max_jobs; i++) s->jobs[i].worked &= ~(1u << index);
    return count;
}

/* Whether its frame is old enough to be asked, and was not. (Callbacks run in the host's calls too.) */
static int is_due(const core *c, const homeward *h) {
    return !h->pending && !h->here && !h->failed && c->frame - h->frame >= AGE;
}

uint32_t cml_end_frame(cml_scheduler *s) {
    core *c = &s->core;
    timing timings[RING * TIMED];
    uint32_t count = 0;
    if (!c->open || s->lost) return c->measured_count = 0;
    for (uint32_t i = 0; i < c->max_jobs; i++)
        if (c->jobs[i].state != CML_GONE && (c->jobs[i].begun_now || c->jobs[i].state == CML_DONE)) drop_inputs(s, c->jobs + i);
    for (uint32_t i = 0; i < RING; i++)
        if (s->ring[i].busy && is_due(c, &s->ring[i].back)) ask_for(&s->ring[i].back);
    for (uint32_t i = 0; i < c->max_jobs; i++) {
        result *r = c->jobs[i].state == CML_DONE ? s->jobs[i].result : NULL;
        if (r != NULL && r->asked && is_due(c, &r->back)) ask_for(&r->back);
    }
    poll_device(s);
    for (uint32_t i = 0; i < RING; i++) {
        ring_slot *slot = s->ring + i;
        if (slot->busy && slot->back.here) count += take_slot(s, slot, timings + count);
        else if (slot->busy && slot->back.failed) slot->busy = slot->back.failed = 0;
    }
    end_frame(c, timings, count, steady_now(s));
    reclaim(s);
    return c->measured_count;
}

const cml_report *cml_measured(const cml_scheduler *s, uint32_t index) {
    return index < s->core.measured_count ? s->core.measured + index : NULL;
}

void cml_abandon_frame(cml_scheduler *s) {
    for (uint32_t i = 0; i < RING; i++)
        if (s->core.open && s->ring[i].busy && s->ring[i].back.frame == s->core.frame) s->ring[i].busy = 0;
    for (uint32_t i = 0; i < s->core.max_jobs; i++)
        if (s->core.open && s->jobs[i].result != NULL && s->jobs[i].result->asked && s->jobs[i].result->back.frame == s->core.frame)
            s->jobs[i].result->asked = 0;
    abandon_frame(&s->core, back_on_device);
    reclaim(s);
}

void cml_device_lost(cml_scheduler *s) {
    s->lost = 1;
    while (s->core.live_count > 0) end_job(&s->core, s->core.live[0], CML_FAILED, "the device was lost");
}

cml_counts cml_made(const cml_scheduler *s) {
    const home *m = &s->core.memory;
    cml_counts made;
    const cml_net *net;
    made.host_blocks = m->host_blocks;
    made.buffers = m->buffers;
    made.bind_groups = made.pipelines = 0;
    for (net = s->core.nets; net != NULL; net = net->next) {
        made.host_blocks += net->memory.host_blocks;
        made.buffers += net->memory.buffers;
        made.bind_groups += net->memory.bind_groups;
        made.pipelines += net->memory.pipelines;
    }
    return made;
}

/* --- coming and going */

static void look_at_device(cml_scheduler *s) {
    WGPUDevice device = s->options.device;
    WGPUAdapterInfo info = {0};
    const char *at;
    wgpuDeviceGetLimits(device, &s->limits);
    if (s->options.adapter != NULL) wgpuAdapterGetInfo(s->options.adapter, &info);
    snprintf(s->name, sizeof s->name, "%.*s (%.*s)", (int)(info.device.data ? info.device.length : 0), info.device.data,
             (int)(info.description.data ? info.description.length : 0), info.description.data);
    s->software = info.adapterType == WGPUAdapterType_CPU;
    s->has_half = wgpuDeviceHasFeature(device, WGPUFeatureName_ShaderF16) != 0;
    s->timed = wgpuDeviceHasFeature(device, WGPUFeatureName_TimestampQuery) != 0;
    s->tick_ms = 1e-6;
    s->lanes = wgpuDeviceHasFeature(device, WGPUFeatureName_Subgroups) ? (int)info.subgroupMinSize : 0;
#ifndef CML_DAWN
    s->tick_ms = 1e-6 * (double)wgpuQueueGetTimestampPeriod(s->queue);
    if (wgpuDeviceHasFeature(device, (WGPUFeatureName)WGPUNativeFeature_Subgroup)) s->lanes = (int)info.subgroupMinSize;
#endif
    at = strstr(s->name, " bits"); /* llvmpipe states a range, and takes the vectors that its name tells */
    if (s->lanes > 0 && at != NULL && strstr(s->name, "llvmpipe") != NULL) {
        while (at > s->name && at[-1] >= '0' && at[-1] <= '9') at--;
        if (atoi(at) > 0) s->lanes = atoi(at) / 32;
    }
    if (s->options.adapter != NULL) wgpuAdapterInfoFreeMembers(info);
    s->each = s->software ? 1 : 2; /* of a software driver's passes only the ends: a timestamp takes it 20 to 50 us */
}

cml_status cml_create(const cml_options *options, cml_scheduler **made, cml_error *error) {
    home memory = {0};
    cml_scheduler *s;
    WGPUQuerySetDescriptor queries = {0};
    uint32_t table[RECEIPTS], i;
    *made = NULL;
    if (options->device == NULL) return fail(error, CML_ERROR_INPUT, "options.device is NULL");
    memory.hook = options->allocator;
    s = taken(&memory, 1, sizeof *s);
    if (s == NULL) return fail(error, CML_ERROR_MEMORY, "no memory for a scheduler");
    s->options = *options;
    s->queue = options->queue ? options->queue : wgpuDeviceGetQueue(options->device);
    look_at_device(s);
    if (s->options.now_ms == NULL) s->options.now_ms = machine_ms;
    if (s->options.max_frames_in_flight == 0) s->options.max_frames_in_flight = 4;
    s->core.memory = memory;
    s->core.policy = options->policy;
    s->core.frame_ms = options->frame_ms > 0 ? options->frame_ms : 1000.0 / 60;
    s->core.model.tail.share = options->over_share > 0 ? options->over_share : 0.01;
    s->core.granule = options->granule ? options->granule : s->software ? processors() : 1;
    s->core.max_groups = TIMED;
    s->core.max_jobs = options->max_jobs ? options->max_jobs : 64;
    s->core.max_slices = options->max_slices ? options->max_slices : 256;
    s->core.wall_clock = !s->timed;
    s->core.ready = net_ready;
    s->core.prepare = prepare_net;
    s->core.start = start_on_device;
    s->core.finish = finish_on_device;
    s->core.ended = ended_on_device;
    core_make(&s->core);
    s->jobs = taken(&s->core.memory, s->core.max_jobs, sizeof *s->jobs);
    s->told = taken(&s->core.memory, s->core.max_slices, sizeof *s->told);
    if (s->core.memory.is_short) {
        memory = s->core.memory;
        all_given_back(&memory);
        return fail(error, CML_ERROR_MEMORY, "no memory for a scheduler of %u jobs", s->core.max_jobs);
    }
    queries.type = WGPUQueryType_Timestamp;
    queries.count = 2 * RING * (TIMED + 1);
    if (s->timed) s->queries = wgpuDeviceCreateQuerySet(options->device, &queries);
    s->resolved = new_buffer(s, &s->core.memory, WGPUBufferUsage_CopySrc | WGPUBufferUsage_CopyDst |
                             (s->timed ? WGPUBufferUsage_QueryResolve : 0), RING * SLOT_BYTES + 4 * RECEIPTS);
    for (i = 0; i < RECEIPTS; i++) table[i] = i + 1;
    wgpuQueueWriteBuffer(s->queue, s->resolved, RING * SLOT_BYTES, table, sizeof table);
    for (i = 0; i < RING; i++) {
        s->ring[i].back.buffer = new_buffer(s, &s->core.memory, WGPUBufferUsage_MapRead | WGPUBufferUsage_CopyDst, SLOT_BYTES);
        s->ring[i].back.bytes = SLOT_BYTES;
    }
    *made = s;
    return CML_OK;
}

void cml_destroy(cml_scheduler *s) {
    home memory;
    int safe = 1;
    if (s == NULL) return;
    while (s->core.nets != NULL) cml_unload(s, s->core.nets);
    for (uint32_t i = 0; i < RING; i++) safe = settled(s, &s->ring[i].back) && safe;
    drop_buffer(&s->resolved);
    if (s->queries != NULL) wgpuQuerySetRelease(s->queries);
    if (s->options.queue == NULL) wgpuQueueRelease(s->queue);
    memory = s->core.memory;
    if (safe) all_given_back(&memory);
}
#endif
