/* Plays cooked networks: see cml.h, and docs/ship_it.md. Parts: memory and errors; SHA-256 and
 * inflate; code of strangers; the file; costs; the decision of a frame; jobs; learning; the device. */
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
typedef struct block { struct block *next; size_t bytes; } block; /* before all that is taken */

typedef struct home { /* where memory comes from, all that was taken, and what was made so far */
    cml_allocator hook;
    block *blocks;
    int is_short; /* some memory was not there */
    cml_counts made;
} home;

/* Zeros, or NULL. */
static void *taken(home *from, uint64_t count, size_t size) {
    int too_many = size > 0 && count > (SIZE_MAX - sizeof(block)) / size;
    size_t bytes = too_many ? 0 : sizeof(block) + (size_t)count * size;
    void *(*take)(void *, size_t) = from->hook.take;
    block *b = too_many ? NULL : take != NULL ? take(from->hook.user, bytes) : malloc(bytes);
    from->is_short |= b == NULL;
    if (b == NULL) return NULL;
    memset(b, 0, bytes);
    *b = (block){from->blocks, bytes};
    from->blocks = b;
    from->made.host_blocks++;
    return b + 1;
}

static void given_back(home *to, const void *memory) { /* quick for what was taken last */
    block **at = &to->blocks, *b;
    while (*at != NULL && (const void *)(*at + 1) != memory) at = &(*at)->next;
    if ((b = *at) == NULL) return;
    *at = b->next;
    if (to->hook.give_back != NULL) to->hook.give_back(to->hook.user, b, b->bytes);
    else free(b);
}

static void all_given_back(home to) { /* a copy: the home itself may lie in what goes */
    while (to.blocks != NULL) given_back(&to, to.blocks + 1);
}

#if defined(__GNUC__)
__attribute__((format(printf, 3, 4)))
#endif
static cml_status fail(cml_error *error, cml_status status, const char *format, ...) {
    va_list values;
    if (error == NULL) return status;
    error->status = status;
    va_start(values, format);
    vsnprintf(error->text, sizeof error->text, format, values);
    va_end(values);
    return status;
}

#define TEXT(t) (int)((t).length < 200 ? (t).length : 200), (t).data
#define LONG(n) (unsigned long long)(n) /* for %llu */
#define TRY(call) for (cml_status tried = (call); tried != CML_OK;) return tried

static int same(double a, double b) { return !(a < b) && !(b < a); } /* is meant: to the bit */
static uint64_t least(uint64_t a, uint64_t b) { return b < a ? b : a; }

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
    for (int i = 0; i < 16; i++, p += 4)
        w[i] = (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
    for (int i = 16; i < 64; i++) {
        uint32_t a = w[i - 15], b = w[i - 2];
        w[i] = w[i - 16] + (turned(a, 7) ^ turned(a, 18) ^ a >> 3) + w[i - 7] +
               (turned(b, 17) ^ turned(b, 19) ^ b >> 10);
    }
    memcpy(v, state, sizeof v);
    for (int i = 0; i < 64; i++) {
        uint32_t e = v[4], a = v[0];
        uint32_t x = v[7] + (turned(e, 6) ^ turned(e, 11) ^ turned(e, 25)) +
                     ((e & v[5]) ^ (~e & v[6])) + sha_k[i] + w[i];
        uint32_t y = (turned(a, 2) ^ turned(a, 13) ^ turned(a, 22)) +
                     ((a & v[1]) ^ (a & v[2]) ^ (v[1] & v[2]));
        memmove(v + 1, v, 7 * sizeof v[0]);
        v[4] += x;
        v[0] = x + y;
    }
    for (int i = 0; i < 8; i++) state[i] += v[i];
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

static int has_digest(const uint8_t *data, size_t size, const uint8_t digest[32]) {
    uint8_t found[32];
    sha256(data, size, found);
    return memcmp(found, digest, 32) == 0;
}

/* ------------------------------------------------------------------ zlib (RFC 1950, 1951) */
typedef struct stream { /* while it is unpacked */
    const uint8_t *in;
    uint8_t *out;
    size_t left, size, at; /* bytes to be read; room for bytes, and how many are there */
    uint64_t held;         /* bits that were read and not used, the next one lowest */
    int count, missing;    /* so many; whether there were too few */
} stream;

static uint32_t next_bits(stream *b, int n) {
    for (; b->count < n && b->left > 0; b->left--, b->count += 8)
        b->held |= (uint64_t)*b->in++ << b->count;
    b->missing |= b->count < n;
    if (b->missing) return 0;
    uint32_t found = (uint32_t)(b->held & ((1u << n) - 1));
    b->held >>= n;
    b->count -= n;
    return found;
}

/* A canonical code: how many codes there are of each length, and their symbols in order. */
typedef struct huffman { uint16_t count[16], symbol[288]; } huffman;

/* 0 where the lengths make no code. */
static int huffman_of(huffman *h, const uint8_t *lengths, int n) {
    uint16_t at[16] = {0};
    int left = 1;
    memset(h->count, 0, sizeof h->count);
    for (int i = 0; i < n; i++) h->count[lengths[i]]++;
    for (int i = 1; i < 16; i++)
        if ((left = 2 * left - h->count[i]) < 0) return 0;
    for (int i = 1; i < 15; i++) at[i + 1] = (uint16_t)(at[i] + h->count[i]);
    for (int i = 0; i < n; i++)
        if (lengths[i] != 0) h->symbol[at[lengths[i]]++] = (uint16_t)i;
    return 1;
}

static int next_symbol(stream *b, const huffman *h) { /* below 0: none */
    int code = 0, first = 0, index = 0;
    for (int length = 1; length < 16; length++) {
        code = 2 * code + (int)next_bits(b, 1);
        if (code - first < h->count[length]) return h->symbol[index + code - first];
        index += h->count[length];
        first = (first + h->count[length]) * 2;
    }
    return -1;
}

/* The lengths of a block's own codes, which are packed with a code themselves. */
static int read_lengths(stream *b, uint8_t lengths[320], int *literals, int *distances) {
    static const uint8_t order[19] = {16, 17, 18, 0, 8,  7, 9,  6, 10, 5,
                                      11, 4,  12, 3, 13, 2, 14, 1, 15};
    static const uint8_t shortest[3] = {3, 3, 11}, extra[3] = {2, 3, 7}; /* of symbols 16 to 18 */
    uint8_t packed[19] = {0};
    huffman codes;
    *literals = (int)next_bits(b, 5) + 257;
    *distances = (int)next_bits(b, 5) + 1;
    int packed_count = (int)next_bits(b, 4) + 4, count = *literals + *distances;
    for (int i = 0; i < packed_count; i++) packed[order[i]] = (uint8_t)next_bits(b, 3);
    if (*literals > 286 || *distances > 30 || !huffman_of(&codes, packed, 19)) return 0;
    for (int i = 0; i < count;) {
        int symbol = next_symbol(b, &codes), repeat = 1;
        if (symbol < 0 || (symbol == 16 && i == 0)) return 0;
        int length = symbol < 16 ? symbol : symbol == 16 ? lengths[i - 1] : 0;
        if (symbol > 15) repeat = shortest[symbol - 16] + (int)next_bits(b, extra[symbol - 16]);
        if (i + repeat > count) return 0;
        memset(lengths + i, length, (size_t)repeat);
        i += repeat;
    }
    return lengths[256] != 0;
}

/* The length (of `per` 4) or distance (2) less its least that a symbol and its bits stand for. */
static size_t extended(stream *b, int symbol, int per) {
    int extra = symbol < 2 * per ? 0 : symbol / per - 1;
    int high = symbol < 2 * per ? symbol : (per + symbol % per) << extra;
    return (size_t)high + next_bits(b, extra);
}

static int coded_block(stream *b, int own_codes) {
    huffman literals, distances;
    uint8_t lengths[320]; /* of the fixed codes, if the block has none of its own */
    int nl = 288, nd = 32;
    for (int i = 0; i < 320; i++)
        lengths[i] = i < 144 ? 8 : i < 256 ? 9 : i < 280 ? 7 : i < 288 ? 8 : 5;
    if (own_codes && !read_lengths(b, lengths, &nl, &nd)) return 0;
    if (!huffman_of(&literals, lengths, nl) || !huffman_of(&distances, lengths + nl, nd)) return 0;
    for (;;) {
        int symbol = next_symbol(b, &literals);
        if (symbol == 256) return 1;
        if (symbol < 0 || symbol > 285 || b->at == b->size) return 0;
        if (symbol < 256) {
            b->out[b->at++] = (uint8_t)symbol;
            continue;
        }
        size_t length = symbol == 285 ? 258 : 3 + extended(b, symbol - 257, 4);
        symbol = next_symbol(b, &distances);
        if (symbol < 0 || symbol > 29) return 0;
        size_t distance = 1 + extended(b, symbol, 2);
        if (b->missing || distance > b->at || length > b->size - b->at) return 0;
        for (; length > 0; length--, b->at++) b->out[b->at] = b->out[b->at - distance];
    }
}

static int stored_block(stream *b) {
    next_bits(b, b->count % 8);
    uint32_t length = next_bits(b, 16), inverse = next_bits(b, 16);
    if (b->missing || (length ^ inverse) != 0xFFFF || length > b->size - b->at) return 0;
    for (; length > 0; length--) b->out[b->at++] = (uint8_t)next_bits(b, 8);
    return !b->missing;
}

/* Whether `in` is one zlib stream of exactly `size` bytes, which are in `out` then. */
static int unpacked(const uint8_t *in, size_t packed, uint8_t *out, size_t size) {
    stream b = {.in = in, .left = packed, .out = out, .size = size};
    uint32_t method = next_bits(&b, 8), flags = next_bits(&b, 8), last = 0;
    if (method % 16 != 8 || method > 127 || flags & 32 || (method << 8 | flags) % 31 != 0) return 0;
    while (!last) {
        last = next_bits(&b, 1);
        uint32_t kind = next_bits(&b, 2);
        if (b.missing || kind > 2) return 0;
        if (kind == 0 ? !stored_block(&b) : !coded_block(&b, kind == 2)) return 0;
    }
    uint32_t low = 1, high = 0; /* the Adler-32 behind it */
    for (size_t i = 0; i < size; i++) {
        low = (low + out[i]) % 65521;
        high = (high + low) % 65521;
    }
    const uint8_t sum[4] = {(uint8_t)(high >> 8), (uint8_t)high, (uint8_t)(low >> 8), (uint8_t)low};
    return !b.missing && b.at == size && b.left == 4 && memcmp(b.in, sum, 4) == 0;
}

/* ------------------------------------------------------------------ code of strangers */
/* The same rules with the same numbers as in cml_engine/cooked/wgsl.py, which says why: shader
 * compilers end the process for code that is too deeply nested or expands to too much. */
enum { MOST_WGSL = 512 << 10, MOST_DEPTH = 64, MOST_PENDING = 512, MOST_NAMES = 512 };
enum { MOST_ELEMENTS = 4096, MOST_EXPANDED = 1 << 20 };

typedef struct wgsl_bracket { /* an open one: '<' of a template, 'a' for that of an array's */
    char kind;
    uint32_t pending;       /* tokens directly in it since the last separator */
    uint64_t size, element; /* of the code before it, and of its arguments before the last comma */
    size_t argument;        /* where the argument behind the last comma begins; 0: there is none */
} wgsl_bracket;

typedef struct wgsl_name { /* of a function, struct, alias or constant */
    cml_text text;
    int is_known;    /* whether its declaration has ended */
    uint64_t size;   /* of what it stands for; of the code before it until that is known */
    uint32_t within; /* number of brackets that its declaration is in */
} wgsl_name;

typedef struct wgsl_scan {
    const char *text;
    size_t length;
    uint32_t depth, pending, name_count, open_count;
    uint64_t size; /* tokens so far; names count as what they stand for */
    wgsl_bracket brackets[MOST_DEPTH + 1];
    wgsl_name names[MOST_NAMES];
    wgsl_name *open[MOST_NAMES]; /* whose declarations have not ended */
} wgsl_scan;

static int is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
static int is_digit(char c) { return c >= '0' && c <= '9'; }
static int is_blank(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

static int is_token(cml_text token, const char *text) {
    return token.length == strlen(text) && memcmp(token.data, text, token.length) == 0;
}

static int is_declaring(cml_text t) {
    return is_token(t, "fn") || is_token(t, "struct") || is_token(t, "alias") ||
           is_token(t, "const") || is_token(t, "override");
}

static int is_array(cml_text t) { return is_token(t, "array") || is_token(t, "binding_array"); }

/* The token at `*at` or behind it, empty at the end of the code. */
static cml_text next_token(const wgsl_scan *s, size_t *at) {
    static const char *const pairs[] = {"->", "<<", "<=", ">="};
    size_t i = *at, start;
    for (;;) {
        while (i < s->length && is_blank(s->text[i])) i++;
        if (i + 1 >= s->length || s->text[i] != '/' || s->text[i + 1] != '/') break;
        while (i < s->length && s->text[i] != '\r' && s->text[i] != '\n') i++;
    }
    start = i;
    if (i < s->length) {
        char first = s->text[i++];
        int is_number = is_digit(first);
        if (is_number || is_letter(first)) {
            while (i < s->length && (is_letter(s->text[i]) || is_digit(s->text[i]) ||
                                     (is_number && s->text[i] == '.')))
                i++;
        } else if (i < s->length) {
            for (size_t k = 0; k < sizeof pairs / sizeof *pairs; k++)
                if (first == pairs[k][0] && s->text[i] == pairs[k][1]) {
                    i++;
                    break;
                }
        }
    }
    *at = i;
    return (cml_text){s->text + start, i - start};
}

static wgsl_name *name_of(wgsl_scan *s, cml_text token) { /* NULL: it is none of the declared */
    for (uint32_t i = 0; i < s->name_count; i++) {
        cml_text text = s->names[i].text;
        if (text.length == token.length && memcmp(text.data, token.data, token.length) == 0)
            return s->names + i;
    }
    return NULL;
}

static const char *find_names(wgsl_scan *s) { /* what is wrong, or NULL, as all of these */
    cml_text before = {"", 0}, token;
    size_t at = 0;
    while ((token = next_token(s, &at)).length > 0) {
        if (is_declaring(before)) {
            if (s->name_count == MOST_NAMES || name_of(s, token) != NULL)
                return "declares too many names, or one of them twice";
            s->names[s->name_count++].text = token;
        }
        before = token;
    }
    return NULL;
}

static void end_item(wgsl_scan *s) {
    wgsl_bracket *top = s->brackets + s->depth;
    s->pending -= top->pending;
    top->pending = 0;
}

static void pop_bracket(wgsl_scan *s) {
    end_item(s);
    s->depth--;
}

static const char *push_bracket(wgsl_scan *s, char kind) {
    if (s->depth == MOST_DEPTH) return "has too many brackets in each other";
    s->depth++;
    s->brackets[s->depth] = (wgsl_bracket){.kind = kind, .size = s->size};
    return NULL;
}

/* Add a token to what is open. */
static const char *count_token(wgsl_scan *s, cml_text token, cml_text before) {
    wgsl_name *name = name_of(s, token);
    if (is_declaring(before)) {
        name->size = s->size;
        name->within = s->depth;
        s->open[s->open_count++] = name;
    } else if (name != NULL) {
        if (!name->is_known) return "uses a name before the end of its declaration";
        s->size += name->size;
    }
    s->size++;
    s->pending++;
    s->brackets[s->depth].pending++;
    return s->pending > MOST_PENDING ? "has too long a statement or chain of else" : NULL;
}

/* The size of an array as a plain number, like 4, 4u or i32(4); below 0 if it is something else. */
static int64_t array_size(const char *text, size_t length) {
    int64_t size = 0;
    size_t digits = 0;
    while (length > 0 && is_blank(text[length - 1])) length--;
    while (length > 0 && is_blank(*text)) text++, length--;
    if (length > 4 && (memcmp(text, "i32(", 4) == 0 || memcmp(text, "u32(", 4) == 0))
        text += 4, length -= 4;
    if (length > 0 && text[length - 1] == ')') length--;
    if (length > 0 && (text[length - 1] == 'i' || text[length - 1] == 'u')) length--;
    for (; digits < length && digits < 9 && is_digit(text[digits]); digits++)
        size = 10 * size + (text[digits] - '0');
    return digits > 0 && digits == length ? size : -1;
}

static const char *close_template(wgsl_scan *s, size_t end) {
    wgsl_bracket *top = s->brackets + s->depth;
    if (top->kind == 'a' && top->argument > 0) {
        int64_t count = array_size(s->text + top->argument, end - 1 - top->argument);
        if (count < 0) return "has an array whose size is no plain number";
        if (count > 0 && top->element > MOST_ELEMENTS / (uint64_t)count)
            return "has an array of too many elements";
        s->size += top->element * (uint64_t)count;
    }
    if (top->kind == 'a' || top->kind == '<') { /* maybe a comparison, which goes on */
        s->depth--;
        s->brackets[s->depth].pending += top->pending;
    }
    return NULL;
}

/* Open or close a bracket, or end a statement. */
static const char *place_bracket(wgsl_scan *s, char token) {
    char opens = token == ')' ? '(' : token == ']' ? '[' : token == '}' ? '{' : 0;
    while (token != '(' && token != '[') {
        char kind = s->brackets[s->depth].kind;
        if (kind == 'a') return "has an array whose type does not end";
        if (kind != '<') break;
        pop_bracket(s); /* it was a sign of a comparison */
    }
    if (token == '(' || token == '[' || token == '{') return push_bracket(s, token);
    if (opens != 0) {
        if (s->brackets[s->depth].kind != opens) return "has brackets that do not match";
        pop_bracket(s);
    }
    if (token == ';') end_item(s);
    if (token == ')' || token == ']') return NULL;
    while (s->open_count > 0 && s->open[s->open_count - 1]->within == s->depth) {
        wgsl_name *name = s->open[--s->open_count];
        name->size = s->size - name->size;
        name->is_known = 1;
    }
    return NULL;
}

static const char *place_token(wgsl_scan *s, cml_text token, cml_text before, size_t end) {
    char sign = token.length == 1 ? *token.data : 0;
    int is_type = is_array(before);
    if (is_type && sign != '<') return "has an array without a type";
    if (sign == '<' && before.length > 0 && is_letter(*before.data))
        return push_bracket(s, is_type ? 'a' : '<');
    if (sign == '>') return close_template(s, end);
    if (sign == ',') {
        wgsl_bracket *top = s->brackets + s->depth;
        end_item(s);
        top->argument = end;
        top->element = s->size - 1 - top->size;
        return NULL;
    }
    return sign != 0 && strchr("()[]{};", sign) != NULL ? place_bracket(s, sign) : NULL;
}

static const char *scan_tokens(wgsl_scan *s) {
    cml_text before = {"", 0}, token;
    size_t at = 0;
    const char *problem = find_names(s);
    while (problem == NULL && (token = next_token(s, &at)).length > 0) {
        if (is_token(before, "}") && !is_token(token, "else")) end_item(s);
        problem = count_token(s, token, before);
        if (problem == NULL) problem = place_token(s, token, before, at);
        if (problem == NULL && s->size > MOST_EXPANDED) problem = "expands to too much";
        before = token;
    }
    return problem == NULL && s->depth > 0 ? "has brackets that do not end" : problem;
}

static const char *scan_letters(const char *text, size_t length) {
    if (length > MOST_WGSL) return "is too long";
    for (size_t i = 0; i < length; i++) {
        if (!is_blank(text[i]) && (text[i] < ' ' || text[i] > '~')) return "is not ASCII";
        if (text[i] == '/' && i + 1 < length && text[i + 1] == '*')
            return "has comments of several lines";
    }
    return NULL;
}

/* Whether a shader compiler may have the code; `problem` says why not. */
static cml_status scan_wgsl(home *memory, const char *text, size_t length, const char **problem) {
    *problem = scan_letters(text, length);
    if (*problem != NULL) return CML_ERROR_CORRUPT;
    wgsl_scan *s = taken(memory, 1, sizeof *s);
    if (s == NULL) return CML_ERROR_MEMORY;
    s->text = text;
    s->length = length;
    *problem = scan_tokens(s);
    given_back(memory, s);
    return *problem == NULL ? CML_OK : CML_ERROR_CORRUPT;
}

/* ------------------------------------------------------------------ the file (docs/cooked.md) */
/* Its records as they lie in it: numbers are little-endian, as on all machines that have WebGPU. */
typedef struct text_row { uint32_t at, length; } text_row;
typedef struct table_row { uint32_t count, at; } table_row;
typedef struct code_row { uint64_t at; uint32_t packed, bytes; } code_row; /* in one language */
typedef struct binding { uint32_t space, zero; uint64_t at, bytes; } binding;
typedef struct update { binding from, to; } update;
typedef struct factor_row { text_row word; double factor; } factor_row;
typedef struct header_row {
    uint8_t magic[8];
    uint32_t format, sections;
    uint64_t bytes;
    uint8_t digest[32];
    cml_limits totals;
    uint8_t zeros[16];
} header_row;
typedef struct section_row {
    char tag[8];
    uint64_t at, bytes;
    uint32_t number, zero;
    uint8_t digest[32];
} section_row;
typedef struct kernel_row {
    uint8_t digest[32];
    text_row label;
    uint32_t params, tensors, flags, zero;
    code_row spirv, wgsl;
    uint64_t zeros;
} kernel_row;
enum { ARENA, WEIGHTS, OWN, SPACES };
typedef struct plan_row {
    text_row profile;
    uint64_t reserved;
    uint64_t spaces[SPACES]; /* bytes */
    uint32_t storage_alignment, uniform_alignment;
    uint64_t binding_size, buffer_size;
    uint32_t invocations, workgroup_storage, storage_buffers, lanes, software, zero;
    double flops, bytes;
    uint64_t gas;
    table_row steps, bindings, inputs, outputs, updates, params, pieces;
    uint8_t zeros[24];
} plan_row;
typedef struct step_row {
    uint32_t kernel, groups, first_binding, bindings, written, params_at, params, line;
    text_row names[4]; /* operator, title, cost key, file */
    double flops, bytes;
    uint64_t gas, zero;
} step_row;
typedef struct tensor_row {
    text_row name;
    uint32_t type, layout, rank, extents[8], space;
    uint64_t at, bytes, zero;
} tensor_row;
enum { AXES = 4, DIMS = 8, POINTS = 6 };
enum { AS_BITS, AS_FLOAT, AS_INTEGER }; /* what stored numbers become */
typedef struct piece_row { /* a constant in a buffer, and what it is made of */
    uint32_t space, stored, becomes, rank;
    uint64_t at, bytes, source, matrix;
    uint32_t extents[AXES];
    struct { uint32_t extent, axis, step; } dims[DIMS];
} piece_row;
typedef struct guess_row {
    text_row pattern;
    double flops_per_ms, bytes_per_ms, launch_ms;
    uint32_t first, count;
} guess_row;
typedef struct golden_row {
    text_row name;
    uint32_t role, type, rank, extents[8], zero;
    uint64_t at;
} golden_row;

enum { MOST_SECTIONS = 256, MOST_TEXT = 4096, MOST_DEVICES = 64, MOST_FACTORS = 4096 };
/* no more workgroups than a dispatch of two dimensions has */
#define MOST_GROUPS_OF_STEP (65535u * 65535u)
enum { MOST_INPUTS = 64, KERNEL_TRUSTED = 1, KERNEL_SUBGROUPS = 2, KERNEL_HALF = 4 };

static int is_amount(double value) { return value >= 0 && value <= 1e300; }
static int is_rate(double value) { return value >= 1e-9 && value <= 1e300; }
static int is_alignment(uint32_t n) { return n >= 4 && n <= 4096 && (n & (n - 1)) == 0; }
static int all_zero(const void *data, uint64_t size) {
    const uint8_t *p = data;
    while (size > 0 && p[size - 1] == 0) size--;
    return size == 0;
}
static int is_inside(uint64_t at, uint64_t n, uint64_t all) { return at <= all && n <= all - at; }

typedef struct part { const uint8_t *data; uint64_t size; } part; /* of the file, or a copy */

typedef struct file {
    part whole, strings, code, values;
    uint32_t section_count, kernel_count, plan_count;
    const section_row *sections; /* copies, as all that is read as records */
    const kernel_row *kernels;
    guess_row guess; /* what the device is believed to do */
    const factor_row *factors;
    uint8_t hashed[MOST_SECTIONS]; /* whose hash was checked */
    cml_limits totals, limits;     /* as the header states them, and the largest allowed */
    uint64_t most_bytes;           /* of the plans that were opened: the largest one's buffers */
    uint32_t most_steps;
    int only_wgsl;                 /* wgpu-native ends the process for SPIR-V that is none */
    int trusted;                   /* the host says that it is its own */
    home *memory;
    cml_error *error;
} file;

#define BAD(f, ...) fail((f)->error, CML_ERROR_CORRUPT, "no whole cooked file: " __VA_ARGS__)
#define EACH(f, what, count, good) /* of the rows `i` of a table, or the file is refused */ \
    for (uint32_t i = 0; i < (count); i++) \
        if (!(good)) return BAD(f, what " %u is damaged", i)

static cml_status copied(file *f, part *of) {
    void *copy = taken(f->memory, of->size, 1);
    if (copy == NULL) return fail(f->error, CML_ERROR_MEMORY, "no memory for the file's tables");
    if (of->size > 0) memcpy(copy, of->data, (size_t)of->size);
    of->data = copy;
    return CML_OK;
}

enum { IF_THERE, NEEDED, RECORDS }; /* records are needed in memory of their own */
/* The section, with its hash checked; NULL where it is not there and need not be. */
static cml_status section(file *f, const char *tag, uint32_t number, int how, part *found) {
    *found = (part){NULL, 0};
    for (uint32_t i = 0; i < f->section_count; i++) {
        const section_row *row = f->sections + i;
        if (strncmp(row->tag, tag, sizeof row->tag) != 0 || row->number != number) continue;
        *found = (part){f->whole.data + row->at, row->bytes};
        if (!f->hashed[i] && !has_digest(found->data, (size_t)found->size, row->digest))
            return BAD(f, "the section '%.8s' %u is damaged (its SHA-256 is another)", tag, number);
        f->hashed[i] = 1;
        return how == NEEDED ? CML_OK : copied(f, found);
    }
    return how == IF_THERE ? CML_OK : BAD(f, "there is no section '%.8s' %u", tag, number);
}

/* The limits where the host states some, else the defaults; a trusted file has none. */
static cml_limits limits_of(const cml_limits *stated, int trusted) {
    cml_limits found = {UINT64_MAX, UINT64_MAX, UINT32_MAX, UINT32_MAX};
    if (!trusted) found = (cml_limits){(uint64_t)64 << 20, (uint64_t)2 << 30, 4096, 16384};
    if (stated == NULL) return found;
    if (stated->code_bytes) found.code_bytes = stated->code_bytes;
    if (stated->device_bytes) found.device_bytes = stated->device_bytes;
    if (stated->kernels) found.kernels = stated->kernels;
    if (stated->steps) found.steps = stated->steps;
    return found;
}

static cml_status check_limits(file *f) {
#define TOTAL(name) {#name, f->totals.name, f->limits.name}
    const struct { const char *name; uint64_t wanted, most; } rows[] = {
        TOTAL(code_bytes), TOTAL(device_bytes), TOTAL(kernels), TOTAL(steps)};
#undef TOTAL
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i].wanted > rows[i].most)
            return fail(f->error, CML_ERROR_LIMIT,
                        "the file states %llu %s, the limit is %llu: raise it in cml_limits if you "
                        "trust the file", LONG(rows[i].wanted), rows[i].name, LONG(rows[i].most));
    return CML_OK;
}

/* The header, and where the sections lie; not what is in them. */
static cml_status open_file(file *f) {
    static const uint8_t magic[8] = {0x89, 'C', 'M', 'L', '\r', '\n', 0x1A, '\n'};
    uint64_t size = f->whole.size, end;
    header_row head;
    memset(&head, 0, sizeof head);
    if (size >= sizeof head) memcpy(&head, f->whole.data, sizeof head);
    if (memcmp(head.magic, magic, 8) != 0) return BAD(f, "it does not begin as one");
    if (head.format != 2)
        return fail(f->error, CML_ERROR_STALE, "the file has format %u, this player reads 2: cook "
                    "it anew, or take a newer player", head.format);
    if (head.bytes != size)
        return BAD(f, "it states %llu bytes, and has %llu", LONG(head.bytes), LONG(size));
    part table = {f->whole.data + sizeof head, sizeof *f->sections * (uint64_t)head.sections};
    end = sizeof head + table.size;
    if (head.sections > MOST_SECTIONS || end > size || !all_zero(head.zeros, 16) ||
        !has_digest(table.data, (size_t)table.size, head.digest))
        return BAD(f, "its header, or its table of sections, is damaged");
    f->totals = head.totals;
    TRY(check_limits(f));
    TRY(copied(f, &table));
    f->sections = (const void *)table.data;
    f->section_count = head.sections;
    for (uint32_t i = 0; i < head.sections; i++) {
        const section_row *row = f->sections + i;
        int order = i == 0 ? 1 : memcmp(row->tag, row[-1].tag, 8), n = 0;
        while (n < 8 && row->tag[n] > 32 && row->tag[n] < 127) n++;
        if (n == 0 || !all_zero(row->tag + n, 8 - (uint64_t)n) || row->zero != 0 || order < 0 ||
            row->number != (order > 0 ? 0 : row[-1].number + 1))
            return BAD(f, "section %u is out of its order", i);
        if (row->at % 64 != 0 || row->at < end || !is_inside(row->at, row->bytes, size) ||
            !all_zero(f->whole.data + end, row->at - end))
            return BAD(f, "section %u lies outside of it, or in another, or not next to it", i);
        end = row->at + row->bytes;
        f->plan_count += strncmp(row->tag, "plan", 8) == 0;
    }
    return end == size ? CML_OK : BAD(f, "there is something behind its last section");
}

/* The bytes of the UTF-8 letter at `p`; 0 if there is none. */
static size_t letter_bytes(const uint8_t *p, size_t left) {
    uint32_t code = p[0], least;
    size_t count;
    if (code < 0x80) return 1;
    if (code >= 0xC2 && code < 0xE0) {
        count = 2, code &= 0x1F, least = 0x80;
    } else if (code >= 0xE0 && code < 0xF0) {
        count = 3, code &= 0x0F, least = 0x800;
    } else if (code >= 0xF0 && code < 0xF5) {
        count = 4, code &= 0x07, least = 0x10000;
    } else {
        return 0;
    }
    if (count > left) return 0;
    for (size_t i = 1; i < count; i++) {
        if ((p[i] & 0xC0) != 0x80) return 0;
        code = code << 6 | (p[i] & 0x3F);
    }
    return code < least || code > 0x10FFFF || (code >= 0xD800 && code < 0xE000) ? 0 : count;
}

static int is_text(const file *f, text_row t) {
    if (!is_inside(t.at, t.length, f->strings.size) || t.length > MOST_TEXT) return 0;
    const uint8_t *p = f->strings.data + t.at;
    for (size_t left = t.length, n; left > 0; left -= n, p += n)
        if ((n = letter_bytes(p, left)) == 0) return 0;
    return 1;
}

static cml_text text_of(const file *f, text_row t) { /* of one that is a text */
    return (cml_text){(const char *)f->strings.data + t.at, t.length};
}

/* Code lies one behind the other, so that none is unpacked twice; `end` is that of the last. */
static int is_code(const file *f, const code_row *c, uint64_t *end) {
    if (c->packed == 0) return c->at == 0 && c->bytes == 0;
    if (c->at != *end || !is_inside(c->at, c->packed, f->code.size)) return 0;
    *end += c->packed;
    /* nothing that is packed so becomes more than 1032 times as long */
    return c->bytes > 0 && c->bytes <= (uint64_t)c->packed * 1040;
}

static int is_kernel(const file *f, const kernel_row *k, uint64_t *end) {
    return is_text(f, k->label) && k->params % 16 == 0 && k->params > 0 && k->params <= 65536 &&
           k->tensors > 0 && k->tensors <= 64 && k->flags <= 7 && k->zero == 0 && k->zeros == 0 &&
           is_code(f, &k->spirv, end) && is_code(f, &k->wgsl, end) && k->spirv.bytes % 4 == 0 &&
           (k->spirv.bytes > 0 || k->wgsl.bytes > 0);
}

static cml_status open_kernels(file *f) {
    part table;
    uint64_t end = 0, unpacked_bytes = 0;
    TRY(section(f, "strings", 0, RECORDS, &f->strings));
    TRY(section(f, "code", 0, NEEDED, &f->code));
    TRY(section(f, "values", 0, NEEDED, &f->values));
    TRY(section(f, "kernels", 0, RECORDS, &table));
    const uint32_t *head = (const void *)table.data; /* their number, and 0 */
    if (table.size < 8 || head[1] != 0 || table.size != 8 + sizeof *f->kernels * (uint64_t)head[0])
        return BAD(f, "its table of kernels is damaged");
    f->kernel_count = head[0];
    f->kernels = (const void *)(head + 2);
    EACH(f, "kernel", f->kernel_count, is_kernel(f, f->kernels + i, &end));
    for (uint32_t i = 0; i < f->kernel_count; i++)
        unpacked_bytes += (uint64_t)f->kernels[i].spirv.bytes + f->kernels[i].wgsl.bytes;
    if (end != f->code.size || unpacked_bytes != f->totals.code_bytes ||
        f->kernel_count != f->totals.kernels)
        return BAD(f, "its kernels have another total than its header states");
    return CML_OK;
}

/* The kernel's code as a block, which is none where there is none. */
static cml_status unpack_code(file *f, const kernel_row *k, const code_row *c, void **out) {
    static const uint8_t spirv[4] = {0x03, 0x02, 0x23, 0x07};
    *out = c->bytes == 0 ? NULL : taken(f->memory, c->bytes, 1);
    if (c->bytes == 0) return CML_OK;
    if (*out == NULL)
        return fail(f->error, CML_ERROR_MEMORY, "no memory for a kernel of %u bytes", c->bytes);
    if (unpacked(f->code.data + c->at, c->packed, *out, c->bytes) &&
        (c == &k->wgsl || memcmp(*out, spirv, 4) == 0))
        return CML_OK;
    given_back(f->memory, *out);
    return BAD(f, "the code of kernel '%.*s' is damaged", TEXT(text_of(f, k->label)));
}

/* The same, where a shader compiler may have it: WGSL of a stranger is scanned. */
static cml_status take_code(file *f, const kernel_row *k, const code_row *c, void **code) {
    int is_checked = c == &k->wgsl && c->bytes > 0 && !f->trusted;
    const char *problem = NULL;
    if (is_checked && c->bytes > MOST_WGSL)
        return BAD(f, "the WGSL of kernel '%.*s' is too long", TEXT(text_of(f, k->label)));
    TRY(unpack_code(f, k, c, code));
    if (!is_checked) return CML_OK;
    cml_status status = scan_wgsl(f->memory, *code, c->bytes, &problem);
    if (status == CML_OK) return CML_OK;
    given_back(f->memory, *code);
    if (status == CML_ERROR_MEMORY)
        return fail(f->error, status, "no memory to check a kernel of %u bytes", c->bytes);
    return BAD(f, "the WGSL of kernel '%.*s' %s", TEXT(text_of(f, k->label)), problem);
}

typedef struct place { /* an input or output */
    cml_shape shape;
    binding at;
    uint64_t among; /* where it lies among all of them */
} place;

typedef struct places { place *of; uint32_t count; uint64_t bytes; } places; /* in, or out */

typedef struct plan { /* a copy of its section, and the tables in it */
    const plan_row *row;
    const step_row *steps;
    const binding *bindings;
    const update *updates;
    const uint8_t *params;
    places inputs, outputs;
    cml_text profile;
    const piece_row *pieces;
} plan;

/* A table of the section; NULL where it is not all inside. */
static const void *rows_of(part in, table_row t, uint64_t size) {
    return t.at % 8 == 0 && is_inside(t.at, size * t.count, in.size) ? in.data + t.at : NULL;
}

static int is_binding(const plan *p, binding b, uint32_t alignment) {
    uint64_t size = b.space < SPACES ? p->row->spaces[b.space] : 0;
    return b.zero == 0 && b.at % alignment == 0 && b.bytes % 4 == 0 && b.bytes >= 4 &&
           is_inside(b.at, b.bytes, size);
}

/* What a tensor of that type, layout, rank and extents is; 0 where there is no such tensor. */
static int shape_of(const file *f, text_row name, uint32_t type, uint32_t layout, uint32_t rank,
                    const uint32_t extents[8], cml_shape *to) {
    if (!is_text(f, name) || type > CML_LOGICAL || layout > CML_C4H || rank > 8 ||
        !all_zero(extents + rank, 4 * (8 - rank)) || (layout != CML_PLAIN && rank < 3) ||
        (layout == CML_C4H && type != CML_SCALAR))
        return 0;
    *to = (cml_shape){text_of(f, name), (cml_type)type, (cml_layout)layout, rank, {0}, 1, 4};
    if (layout == CML_C4H) to->bytes = 2;
    for (uint32_t i = 0; i < rank; i++) {
        uint64_t extent = to->extents[i] = extents[i];
        to->elements *= extent;
        if (layout != CML_PLAIN && i == 1) extent = (extent + 3) / 4 * 4;
        if (extent > 0 && to->bytes > ((uint64_t)1 << 48) / extent) return 0;
        to->bytes *= extent;
    }
    return 1;
}

static cml_status open_places(file *f, const plan *p, part in, table_row table, places *to) {
    const tensor_row *row = rows_of(in, table, sizeof *row);
    if (row == NULL) return BAD(f, "a table of '%.*s' lies outside of it", TEXT(p->profile));
    to->of = taken(f->memory, table.count, sizeof *to->of);
    if (to->of == NULL) return fail(f->error, CML_ERROR_MEMORY, "no memory for its tensors");
    for (; to->count < table.count; to->count++, row++) {
        place *one = to->of + to->count;
        *one = (place){.at = {row->space, 0, row->at, row->bytes}, .among = to->bytes};
        if (!shape_of(f, row->name, row->type, row->layout, row->rank, row->extents, &one->shape) ||
            row->zero != 0 || row->bytes != one->shape.bytes || row->space >= SPACES ||
            row->at % p->row->storage_alignment != 0 ||
            !is_inside(row->at, (row->bytes + 15) / 16 * 16, p->row->spaces[row->space]))
            return BAD(f, "input or output %u of '%.*s' is damaged", to->count, TEXT(p->profile));
        to->bytes += (row->bytes + 255) / 256 * 256;
    }
    return CML_OK;
}

static int is_step(const file *f, const plan *p, const step_row *s) {
    if (s->kernel >= f->kernel_count) return 0;
    const kernel_row *k = f->kernels + s->kernel;
    int has_lanes = (k->flags & KERNEL_SUBGROUPS) == 0 || p->row->lanes > 0;
    return s->groups > 0 && s->groups <= MOST_GROUPS_OF_STEP && s->written > 0 &&
           is_inside(s->first_binding, s->bindings, p->row->bindings.count) &&
           s->bindings == k->tensors && s->written <= s->bindings && s->params == k->params &&
           s->bindings <= p->row->storage_buffers && has_lanes && s->zero == 0 &&
           is_amount(s->flops) && is_amount(s->bytes) && is_text(f, s->names[0]) &&
           is_text(f, s->names[1]) && is_text(f, s->names[2]) && is_text(f, s->names[3]);
}

/* Steps have their bindings one behind the other. A parameter block is that of a step before, or
 * begins where a device can bind it behind the last. */
static cml_status check_steps(file *f, const plan *p) {
    uint32_t count = p->row->params.count, unit = p->row->uniform_alignment, first = 0;
    uint64_t end = 0;
    uint32_t *blocks = taken(f->memory, (uint64_t)count / unit + 1, sizeof *blocks);
    if (blocks == NULL) return fail(f->error, CML_ERROR_MEMORY, "no memory for its steps");
    for (uint32_t i = 0; i < p->row->steps.count; i++) {
        const step_row *s = p->steps + i;
        uint64_t next = (end + unit - 1) / unit * unit;
        if (!is_step(f, p, s) || s->first_binding != first || s->params_at % unit != 0 ||
            !is_inside(s->params_at, s->params, count))
            return BAD(f, "step, or the kernel, of step %u is damaged", i);
        if (s->params_at == next && all_zero(p->params + end, next - end)) {
            blocks[next / unit] = s->params;
            end = next + s->params;
        }
        if (blocks[s->params_at / unit] != s->params)
            return BAD(f, "the parameters of step %u are damaged", i);
        first += s->bindings;
    }
    given_back(f->memory, blocks);
    if (first != p->row->bindings.count || end != count)
        return BAD(f, "the plan '%.*s' has bindings or parameters that no step has",
                   TEXT(p->profile));
    return CML_OK;
}

/* Constants: numbers of the section `values` in another order (docs/cooked.md). */
static uint32_t stored_size(const piece_row *r) {
    static const uint8_t sizes[] = {1, 2, 4, 1, 1, 2, 2}; /* bits, then int8 to uint16 */
    return sizes[r->stored];
}

static uint32_t element_size(const piece_row *r) {
    return r->becomes == AS_BITS ? stored_size(r) : 4;
}

/* a * b, or more than any buffer has. */
static uint64_t times(uint64_t a, uint64_t b) {
    const uint64_t most_bytes = (uint64_t)1 << 48;
    return b > 0 && a > most_bytes / b ? most_bytes + 1 : a * b;
}

/* Whether the finer dimensions of an axis fill the step of each, so that no place is left out. */
static int has_dims(const piece_row *r) {
    for (uint32_t i = 0; i < DIMS; i++) {
        uint64_t finer = 1;
        if (i >= r->rank && !all_zero(r->dims + i, sizeof r->dims[i])) return 0;
        if (i < r->rank && (r->dims[i].extent == 0 || r->dims[i].axis >= AXES)) return 0;
        for (uint32_t k = 0; i < r->rank && k < r->rank; k++)
            if (r->dims[k].axis == r->dims[i].axis && r->dims[k].step < r->dims[i].step)
                finer = times(finer, r->dims[k].extent);
        if (i < r->rank && finer != r->dims[i].step) return 0;
    }
    return 1;
}

static int is_piece(const file *f, const plan *p, uint32_t number) {
    const piece_row *r = p->pieces + number, *before = number > 0 ? r - 1 : NULL;
    uint64_t count = 1, source = 1;
    if (r->stored > 6 || r->becomes > AS_INTEGER || (r->becomes == AS_BITS) != (r->stored < 3) ||
        r->space == ARENA || r->space >= SPACES || r->rank == 0 || r->rank > DIMS ||
        r->at % 4 != 0 || r->source % 16 != 0 || !has_dims(r))
        return 0;
    if (before != NULL && (r->space < before->space ||
                           (r->space == before->space && r->at < before->at + before->bytes)))
        return 0;
    for (uint32_t i = 0; i < r->rank; i++) count = times(count, r->dims[i].extent);
    for (uint32_t i = 0; i < AXES; i++) {
        uint64_t reach = 1, end = i == 2 && r->matrix != UINT64_MAX ? POINTS * POINTS : r->extents[i];
        for (uint32_t k = 0; k < r->rank; k++)
            if (r->dims[k].axis == i) reach = times(reach, r->dims[k].extent);
        if (end > reach) return 0; /* all of the source is there, so that it is no larger */
        source = times(source, r->extents[i]);
    }
    if (r->bytes != (times(count, element_size(r)) + 3) / 4 * 4 ||
        !is_inside(r->at, r->bytes, p->row->spaces[r->space]) ||
        !is_inside(r->source, times(source, stored_size(r)), f->values.size))
        return 0;
    if (r->matrix == UINT64_MAX) return 1;
    for (uint32_t i = 0; i < r->rank; i++)
        if (r->dims[i].axis == 3) return 0;
    return element_size(r) == 4 && r->becomes != AS_INTEGER && r->extents[2] == 9 &&
           r->extents[3] == 1 && r->matrix % 16 == 0 &&
           is_inside(r->matrix, 3 * POINTS * sizeof(double), f->values.size);
}

/* A number of the source as it becomes. */
static void put_number(const piece_row *r, const uint8_t *source, uint64_t number, uint8_t *to) {
    const uint8_t *p = source + number * stored_size(r);
    uint16_t two = 0;
    int32_t whole = 0;
    if (r->becomes == AS_BITS) {
        memcpy(to, p, stored_size(r));
        return;
    }
    if (stored_size(r) == 2) memcpy(&two, p, 2);
    if (r->stored == 3) whole = (int8_t)*p;
    if (r->stored == 4) whole = *p;
    if (r->stored == 5) whole = (int16_t)two;
    if (r->stored == 6) whole = two;
    float number_of = (float)whole;
    if (r->becomes == AS_FLOAT) memcpy(to, &number_of, 4);
    else memcpy(to, &whole, 4);
}

/* matrix * window * transposed matrix at a point, in doubles, terms in this order. */
static void put_point(const piece_row *r, const uint8_t *source, uint64_t window, uint64_t point,
                      const double matrix[3 * POINTS], uint8_t *to) {
    const double *y = matrix + 3 * (point / POINTS), *x = matrix + 3 * (point % POINTS);
    double down[3];
    for (uint64_t column = 0; column < 3; column++) {
        float v[3];
        for (uint64_t row = 0; row < 3; row++)
            put_number(r, source, 9 * window + 3 * row + column, (uint8_t *)(v + row));
        double a = y[0] * (double)v[0], b = y[1] * (double)v[1], c = y[2] * (double)v[2];
        down[column] = (a + b) + c;
    }
    double a = down[0] * x[0], b = down[1] * x[1], c = down[2] * x[2];
    float found = (float)((a + b) + c);
    memcpy(to, &found, 4);
}

static uint64_t element_count(const piece_row *r) {
    uint64_t count = 1;
    for (uint32_t i = 0; i < r->rank; i++) count *= r->dims[i].extent;
    return count;
}

/* Elements [first, first + count) of a constant. */
static void make_elements(const file *f, const piece_row *r, uint64_t first, uint64_t count,
                          uint8_t *to) {
    const uint8_t *source = f->values.data + r->source;
    uint32_t index[DIMS], size = element_size(r);
    uint64_t at[AXES] = {0}, ends[AXES];
    double matrix[3 * POINTS];
    int is_transformed = r->matrix != UINT64_MAX;
    for (int i = 0; i < AXES; i++) ends[i] = r->extents[i];
    if (is_transformed) memcpy(matrix, f->values.data + r->matrix, sizeof matrix);
    if (is_transformed) ends[2] = POINTS * POINTS;
    for (uint32_t i = r->rank; i-- > 0; first /= r->dims[i].extent) {
        index[i] = (uint32_t)(first % r->dims[i].extent);
        at[r->dims[i].axis] += (uint64_t)index[i] * r->dims[i].step;
    }
    for (; count > 0; count--, to += size) {
        uint64_t row = at[0] * ends[1] + at[1];
        int is_there = at[0] < ends[0] && at[1] < ends[1] && at[2] < ends[2] && at[3] < ends[3];
        if (!is_there) memset(to, 0, size);
        else if (is_transformed) put_point(r, source, row, at[2], matrix, to);
        else put_number(r, source, (row * ends[2] + at[2]) * ends[3] + at[3], to);
        for (uint32_t i = r->rank; i-- > 0;) {
            at[r->dims[i].axis] += r->dims[i].step;
            if (++index[i] < r->dims[i].extent) break;
            at[r->dims[i].axis] -= (uint64_t)r->dims[i].extent * r->dims[i].step;
            index[i] = 0;
        }
    }
}

/* Bytes [first, first + bytes) of a constant, multiples of 4; zeros behind its last element. */
static void make_bytes(const file *f, const piece_row *r, uint64_t first, uint64_t bytes,
                       uint8_t *to) {
    uint64_t size = element_size(r), at = first / size;
    uint64_t count = least(bytes / size, element_count(r) - at);
    make_elements(f, r, at, count, to);
    memset(to + count * size, 0, (size_t)(bytes - count * size));
}

/* The plan of that number, in memory of its own. */
static cml_status open_plan(file *f, uint32_t number, plan *p) {
    part in;
    TRY(section(f, "plan", number, RECORDS, &in));
    const plan_row *row = (const void *)in.data;
    if (in.size < sizeof *row || !is_text(f, row->profile) || row->zero != 0 || row->software > 1 ||
        row->reserved != 0 || !all_zero(row->zeros, sizeof row->zeros) || 
        !is_alignment(row->storage_alignment) || !is_alignment(row->uniform_alignment) ||
        !is_amount(row->flops) || !is_amount(row->bytes) || row->inputs.count > MOST_INPUTS)
        return BAD(f, "the header of plan %u is damaged", number);
    *p = (plan){.row = row, .profile = text_of(f, row->profile)};
    for (int i = 0; i < SPACES; i++)
        if (row->spaces[i] > row->buffer_size || row->spaces[i] >> 48 || row->spaces[i] % 4 != 0)
            return BAD(f, "the buffers of plan %u are of no possible size", number);
    p->steps = rows_of(in, row->steps, sizeof *p->steps);
    p->bindings = rows_of(in, row->bindings, sizeof *p->bindings);
    p->updates = rows_of(in, row->updates, sizeof *p->updates);
    p->params = rows_of(in, row->params, 1);
    p->pieces = rows_of(in, row->pieces, sizeof *p->pieces);
    if (!p->steps || !p->bindings || !p->updates || !p->params || !p->pieces)
        return BAD(f, "tables of the plan '%.*s' lie outside of it", TEXT(p->profile));
    EACH(f, "binding", row->bindings.count,
         is_binding(p, p->bindings[i], row->storage_alignment) &&
             p->bindings[i].bytes <= row->binding_size);
    EACH(f, "update", row->updates.count,
         is_binding(p, p->updates[i].from, row->storage_alignment) &&
             is_binding(p, p->updates[i].to, row->storage_alignment) &&
             p->updates[i].from.space != p->updates[i].to.space &&
             p->updates[i].to.space != WEIGHTS);
    TRY(check_steps(f, p));
    EACH(f, "constant", row->pieces.count, is_piece(f, p, i));
    uint64_t bytes = row->spaces[ARENA] + row->spaces[WEIGHTS] + row->spaces[OWN] + row->params.count;
    if (bytes > f->most_bytes) f->most_bytes = bytes;
    if (row->steps.count > f->most_steps) f->most_steps = row->steps.count;
    if (bytes > f->totals.device_bytes || row->steps.count > f->totals.steps)
        return BAD(f, "the plan '%.*s' takes more than the header states", TEXT(p->profile));
    TRY(open_places(f, p, in, row->inputs, &p->inputs));
    return open_places(f, p, in, row->outputs, &p->outputs);
}

static int lower(char c) { return c >= 'A' && c <= 'Z' ? c + 32 : c; }
static int is_word(cml_text name, size_t at) { /* whether a character of words is there */
    int c = at < name.length ? lower(name.data[at]) : ' ';
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
}

/* Whether the pattern's word from `p` on is in the name at `n`; \b is a word's beginning or end. */
static int is_at(cml_text pattern, size_t p, cml_text name, size_t n) {
    for (; p < pattern.length && pattern.data[p] != '|'; p++) {
        int bound = p + 1 < pattern.length && memcmp(pattern.data + p, "\\b", 2) == 0;
        if (bound && is_word(name, n - 1) == is_word(name, n)) return 0;
        if (!bound && n >= name.length) return 0;
        if (!bound && lower(name.data[n++]) != lower(pattern.data[p])) return 0;
        p += bound ? 1 : 0;
    }
    return 1;
}

static int matches(cml_text pattern, cml_text name) { /* one of the words that `|` joins */
    for (size_t p = 0; p <= pattern.length; p++)
        for (size_t n = 0; n <= name.length && (p == 0 || pattern.data[p - 1] == '|'); n++)
            if (is_at(pattern, p, name, n)) return 1;
    return 0;
}

/* What is believed of a device of that name; the general numbers where the file says nothing. */
static cml_status open_guess(file *f, cml_text name) {
    part in;
    f->guess = (guess_row){{0, 0}, 2e7, 4e6, 0.004, 0, 0};
    TRY(section(f, "guess", 0, IF_THERE, &in));
    if (in.data == NULL) return CML_OK;
    const uint32_t *head = (const void *)in.data; /* number of devices, and of factors */
    if (in.size < 8 || head[0] > MOST_DEVICES || head[1] > MOST_FACTORS ||
        in.size != 8 + sizeof(guess_row) * (uint64_t)head[0] + sizeof(factor_row) * head[1])
        return BAD(f, "its first guesses are damaged");
    const guess_row *devices = (const void *)(head + 2);
    const factor_row *factors = (const void *)(devices + head[0]);
    EACH(f, "factor", head[1], is_text(f, factors[i].word) && is_rate(factors[i].factor));
    for (uint32_t i = head[0]; i-- > 0;) { /* so that the first that matches is taken */
        const guess_row *one = devices + i;
        if (!is_text(f, one->pattern) || !is_inside(one->first, one->count, head[1]) ||
            !is_rate(one->flops_per_ms) || !is_rate(one->bytes_per_ms) ||
            !is_amount(one->launch_ms))
            return BAD(f, "first guess %u is damaged", i);
        if (!matches(text_of(f, one->pattern), name)) continue;
        f->guess = *one;
        f->factors = factors + one->first;
    }
    return CML_OK;
}

static int same_text(cml_text a, cml_text b) {
    return a.length == b.length && memcmp(a.data, b.data, a.length) == 0;
}

/* Whether they are the same input or output, in whatever layout. */
static int same_tensor(const cml_shape *a, const cml_shape *b) {
    return same_text(a->name, b->name) && a->type == b->type && a->rank == b->rank &&
           memcmp(a->extents, b->extents, sizeof a->extents) == 0;
}

static int same_tensors(const places *a, const places *b) {
    if (a->count != b->count) return 0;
    for (uint32_t i = 0; i < a->count; i++)
        if (!same_tensor(&a->of[i].shape, &b->of[i].shape)) return 0;
    return 1;
}

/* Whether a row of the example is that tensor of the network. */
static int is_golden(const file *f, const golden_row *row, uint32_t role, const place *of,
                     uint64_t size) {
    cml_shape shape;
    return row->role == role && row->zero == 0 &&
           shape_of(f, row->name, row->type, 0, row->rank, row->extents, &shape) &&
           same_tensor(&shape, &of->shape) && is_inside(row->at, shape.bytes, size);
}

/* The example has all inputs, then all outputs, in the order of the plans. */
static cml_status check_golden(file *f, const plan *p) {
    part in;
    float tolerance;
    TRY(section(f, "golden", 0, IF_THERE, &in));
    if (in.data == NULL) return CML_OK;
    const uint32_t *count = (const void *)in.data; /* and the tolerance */
    const golden_row *rows = (const void *)(count + 2);
    uint32_t inputs = p->inputs.count;
    if (in.size < 8 || *count > (in.size - 8) / sizeof *rows ||
        *count != inputs + (uint64_t)p->outputs.count)
        return BAD(f, "its example is damaged");
    memcpy(&tolerance, count + 1, sizeof tolerance);
    if (!(tolerance >= 0) || isinf(tolerance)) return BAD(f, "its example has no tolerance");
    EACH(f, "tensor of its example", *count,
         is_golden(f, rows + i, i >= inputs,
                   i < inputs ? p->inputs.of + i : p->outputs.of + (i - inputs), in.size));
    return CML_OK;
}

static cml_status check_all(file *f) {
    part unused;
    plan first, p;
    TRY(open_file(f));
    for (uint32_t i = 0; i < f->section_count; i++) /* those of tools too */
        TRY(section(f, f->sections[i].tag, f->sections[i].number, NEEDED, &unused));
    TRY(open_kernels(f));
    for (uint32_t i = 0; i < f->kernel_count; i++) { /* SPIR-V is for trusted files */
        void *code = NULL;
        TRY(take_code(f, f->kernels + i, &f->kernels[i].wgsl, &code));
        given_back(f->memory, code);
    }
    if (f->plan_count == 0) return BAD(f, "it has no plan");
    TRY(open_plan(f, 0, &first));
    for (uint32_t i = 1; i < f->plan_count; i++) {
        TRY(open_plan(f, i, &p));
        if (!same_tensors(&p.inputs, &first.inputs) || !same_tensors(&p.outputs, &first.outputs))
            return BAD(f, "its plans have other inputs or outputs than each other");
    }
    if (f->most_bytes != f->totals.device_bytes || f->most_steps != f->totals.steps)
        return BAD(f, "its header states other totals than its plans have");
    TRY(section(f, "meta", 0, NEEDED, &unused));
    TRY(check_golden(f, &first));
    return open_guess(f, (cml_text){"", 0});
}

cml_status cml_check(const void *bytes, size_t size, const cml_limits *limits,
                     const cml_allocator *allocator, cml_error *error) {
    home memory = {.hook = allocator != NULL ? *allocator : (cml_allocator){NULL, NULL, NULL}};
    file f = {.whole = {bytes, bytes ? size : 0}, .memory = &memory, .error = error,
              .limits = limits_of(limits, 0)};
    if (error != NULL) memset(error, 0, sizeof *error);
    cml_status status = check_all(&f);
    all_given_back(memory);
    return status;
}

/* ------------------------------------------------------------------ costs (scheduler/planning/) */
/* To decide as the Python scheduler does, to the bit, sums and products stand in its order here,
 * and no compiler may fuse them: -ffp-contract=off where a processor has fused operations. */

enum { CURVE_LISTS = 1024, BUCKETS = 65, MEMORY = 48, WINDOW = 1200, CLIP_AFTER = 4, SETTLED = 12, ENOUGH = 8 };

typedef struct point { /* the logarithm of the time (ms) of about so many workgroups */
    double log_count, log_ms, spread;
    uint64_t samples; /* 0: there is none */
} point;

typedef struct curve { /* time over number of workgroups of one cost key */
    struct curve *next;
    uint64_t key, samples;
    point points[BUCKETS]; /* by the number's bucket */
} curve;

typedef struct step {
    uint32_t groups;
    double work, factor; /* ms of a workgroup as first guessed, and how many times that it takes */
    uint64_t key;        /* of what costs the same per workgroup */
    curve *curve;
} step;

typedef struct planned { /* a slice */
    struct job *job;
    step *step;
    uint32_t first, count;
    double ms;
} planned;

typedef struct model {
    double launch_ms, unknown, drift, error; /* launch_ms: 0 before there is a first guess */
    uint64_t unknown_samples;
    curve *curves[CURVE_LISTS]; /* by their keys */
    /* margin.py: by how much the last frames exceeded what was predicted, of which so many may */
    double excess[WINDOW], sorted[WINDOW], over_share;
    uint32_t next, count;
} model;

static double clipped(double error, double most) { return fmax(fmin(most, error), -most); }
static double among(uint64_t samples) { return fmin((double)samples, MEMORY); }
static int bucket_of(uint32_t count) { return (int)rint(2 * log2(count)); }
static int has_samples(const step *s) { return s->curve->samples > 0; }

static uint64_t key_of(cml_text text) { /* FNV-1a; keys of one hash would only share costs */
    uint64_t hash = 0xcbf29ce484222325u;
    for (size_t i = 0; i < text.length; i++)
        hash = (hash ^ (uint8_t)text.data[i]) * 0x100000001b3u;
    return hash;
}

static curve *curve_of(home *memory, model *m, uint64_t key) { /* NULL: no memory */
    curve **list = m->curves + key % CURVE_LISTS, *c = *list;
    while (c != NULL && c->key != key) c = c->next;
    if (c != NULL || (c = taken(memory, 1, sizeof *c)) == NULL) return c;
    c->key = key;
    c->next = *list;
    return *list = c;
}

/* The logarithm of the time of so many workgroups, of a curve that has points. */
static double between(const curve *c, uint32_t count) {
    const point *p = c->points;
    int low = bucket_of(count), high = low;
    double x = log(count);
    while (low >= 0 && (p[low].samples == 0 || p[low].log_count > x)) low--;
    while (high < BUCKETS && (p[high].samples == 0 || p[high].log_count < x)) high++;
    if (low == high) return p[low].log_ms;
    if (low < 0 || high == BUCKETS) p += low < 0 ? high : low;
    if (low < 0 || high == BUCKETS) return p->log_ms + x - p->log_count;
    double share = (x - p[low].log_count) / (p[high].log_count - p[low].log_count);
    return p[low].log_ms + share * (p[high].log_ms - p[low].log_ms);
}

/* The median time of so many workgroups of the step. */
static double predict(const model *m, const step *s, uint32_t count) {
    if (count == 0) return 0.0;
    if (!has_samples(s))
        return m->launch_ms + count * s->work * s->factor * exp(m->unknown + m->drift);
    return exp(between(s->curve, count) + m->drift);
}

/* The largest number of workgroups, at most `limit`, predicted to take `ms`. */
static uint32_t groups_within(const model *m, const step *s, uint32_t limit, double ms) {
    uint32_t low = 1, high = limit;
    if (limit == 0 || ms <= 0 || predict(m, s, 1) > ms) return 0;
    if (predict(m, s, limit) <= ms) return limit;
    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;
        *(predict(m, s, middle) <= ms ? &low : &high) = middle;
    }
    return low;
}

static void learn_curve(curve *c, uint32_t count, double ms) {
    point *p = c->points + bucket_of(count);
    double x = log(count), y = log(ms);
    c->samples++;
    if (p->samples == 0) {
        *p = (point){x, y, 0.0, 1};
        return;
    }
    double error = y - (x - p->log_count) - p->log_ms, weight = 1.0 / among(++p->samples);
    if (p->samples > CLIP_AFTER) error = clipped(error, log(2.5));
    double moved = weight * (p->samples > SETTLED ? clipped(error, 0.2 + 3.0 * p->spread) : error);
    p->spread += weight * (fabs(error) - p->spread);
    for (int i = 0; i < BUCKETS; i++) /* slower is slower for every number of workgroups */
        c->points[i].log_ms += c->points + i == p ? moved : 0.5 * clipped(moved, log(2.5));
}

/* The slices together took `ms` (below 0: what is predicted); each gets its predicted share. */
static void learn(model *m, planned *parts, uint32_t n, double ms) {
    double total = 0;
    int known = 1;
    for (uint32_t i = 0; i < n; i++)
        total += parts[i].ms = predict(m, parts[i].step, parts[i].count);
    double ratio = ms < 0 ? 1.0 : ms / total;
    if (!(ratio > 0) || !(total > 0) || isinf(ratio)) return;
    for (uint32_t i = 0; i < n; i++)
        known &= parts[i].step->curve->points[bucket_of(parts[i].count)].samples > 0;
    if (known) {
        double error = clipped(log(ratio), log(2.5));
        m->drift += 1.0 / 32 * clipped(error, 0.1 + 3.0 * m->error);
        m->error += 1.0 / 32 * (fabs(error) - m->error);
    }
    double slower = exp(m->drift);
    for (uint32_t i = 0; i < n; i++) {
        if (!has_samples(parts[i].step) && parts[i].ms > 8 * m->launch_ms)
            m->unknown = clipped(m->unknown + log(ratio) / among(++m->unknown_samples), log(100));
        learn_curve(parts[i].step->curve, parts[i].count, parts[i].ms * ratio / slower);
    }
}

static void remember(model *m, double predicted, double measured, int hopeless) {
    double now = hopeless ? 0.0 : (measured - predicted) / sqrt(predicted);
    uint32_t at = 0;
    if (m->count == WINDOW) {
        while (m->sorted[at] < m->excess[m->next]) at++;
        m->count--;
        memmove(m->sorted + at, m->sorted + at + 1, sizeof now * (m->count - at));
    }
    m->excess[m->next] = now;
    m->next = (m->next + 1) % WINDOW;
    for (at = m->count++; at > 0 && m->sorted[at - 1] > now; at--)
        m->sorted[at] = m->sorted[at - 1];
    m->sorted[at] = now;
}

/* The predicted milliseconds to plan for in a budget. */
static double aim_of(const model *m, double budget) {
    double aimed = 0.8 * m->over_share, rank = ceil((1 - aimed) * (m->count + 1.0)) - 1;
    if (m->count < ENOUGH) return budget / 1.3;
    double tail = m->sorted[rank < m->count ? (uint32_t)rank : m->count - 1];
    if (rank >= m->count) /* so rare a frame was not seen yet */
        tail += fmax(0.0, 0.5 * (tail - m->sorted[m->count / 2]) * (1 - m->count * aimed));
    double half = 0.5 * fmax(0.0, tail);
    return fmax(pow(sqrt(half * half + budget) - half, 2), 0.125 * budget);
}

/* ------------------------------------------------------------------ jobs */
enum { MOST_TAKEN = 16, MOST_GROUPS = 64, IN_FLIGHT = 16, SLOT_NAME = 48, APART_EVERY = 16 };
enum { KNOWN = 6, REST_EVERY = 48, GUESSED = 4 };

typedef struct job job;
#ifndef CML_CORE_ONLY
enum { TIMED = 12, RING = 8, AGE = 2, MOST_RESULTS = 8, BOUND_PER_FRAME = 32, SLOT_BYTES = 256 };
enum { RECEIPTS = 256, LEAST_UPLOAD = 64 << 10, UPLOAD_PER_MS = 256 << 10, CHUNK = 1 << 20 };

enum { FREE, COPIED, PENDING, HERE, LOST, DROPPED }; /* states of what is: */
typedef struct homeward { /* bytes on their way home: a job's outputs, or a frame's timestamps */
    WGPUBuffer buffer, from; /* of a job that has `used` it */
    uint64_t frame;          /* the one that copies them */
    int state, used;
    uint32_t passes; /* of the frame */
} homeward;
#endif

struct cml_net {
    home memory;
    step *steps;
    uint32_t step_count;
    const cml_net *exclusive; /* of those with the same one only one job is under way */
    double *after;            /* predicted ms of the steps from each one on, in the frame: */
    uint64_t after_frame;
    int adopted, is_wanted, is_ready;
    int is_unloaded; /* goes when the frame that may use it ends */
    file f; /* its bytes go when all is built: what lasts is copied */
    cml_net *next;
#ifndef CML_CORE_ONLY
    cml_scheduler *scheduler;
    plan p;
    uint32_t pieces_there; /* that were uploaded */
    uint64_t uploaded;     /* bytes of the next */
    uint8_t *staging;
    WGPUBuffer spaces[SPACES], uniforms; /* the steps' parameters */
    uint32_t bound;                      /* steps that have a bind group */
    WGPUComputePipeline *pipelines; /* by kernel */
    WGPUBindGroupLayout *layouts;
    WGPUBindGroup *groups; /* by step */
    int waiting; /* for what the device says of what it was asked for; Dawn some time later: */
    cml_status refused;
    char refusal[240];
    int trusted;
    uint32_t worked; /* as a job's: of the frames that its variables' values hang on */
    int wrong;       /* one of those never ran */
    homeward results[MOST_RESULTS]; /* memory for the outputs of jobs */
#endif
};

struct job {
    cml_job number; /* in the order of their coming: its handle */
    int paused, dated, released, wants_read;
    cml_net *net;
    struct {
        cml_state state;
        uint32_t step, group;
        double given_ms, virtual_ms;
    } at, was;       /* before the frame, which may be taken back: */
    uint64_t was_in; /* one more than the frame */
    double priority, deadline_at, last_served_ms;
    char slot[SLOT_NAME], error[200];
    job *makers[MOST_TAKEN]; /* whose outputs it takes: they stay until it has them */
    uint32_t maker_count, takers;
    int urgent; /* in this frame, of one that could run */
    double remaining, laxity;
#ifndef CML_CORE_ONLY
    uint8_t *data; /* of the place: inputs that came from the host, and room for them */
    uint64_t room;
    struct source { /* of an input: `data`, a range of a buffer, what a job will have made */
        int given;
        WGPUBuffer buffer;
        uint64_t at; /* in the buffer, or among the job's outputs */
        job *maker;
    } sources[MOST_INPUTS];
    uint32_t source_count;
    homeward *result;
    uint32_t worked; /* a bit for each slot of the ring whose frame had work of it */
#endif
};

typedef struct work { /* a frame's, which is learned from when its timings have come */
    cml_report report;
    int given; /* decided by somebody else */
    planned *slices;
    uint32_t slice_count; /* 0 from when nothing more is to be learned */
    uint32_t group_count, ends[MOST_GROUPS]; /* slices that are timed as one */
    double ms[MOST_GROUPS];                  /* below 0 until it is known */
} work;

struct cml_scheduler {
    home memory;
    model model;
    cml_policy policy;
    double frame_ms, rate, now;
    uint32_t granule, max_groups, max_slices, max_jobs;
    uint64_t frame, newest; /* one more than the newest frame that has timings */
    cml_job numbers;  /* jobs so far */
    job *jobs, **live; /* live: those that have not ended, the oldest first */
    double left[2]; /* the least virtual time of those that ended in this frame, by idleness */
    cml_net *nets;
    job **candidates, **starts; /* who could run in this frame, and who begins in it */
    const job *starved;         /* who comes first, whatever the policy */
    uint32_t live_count, candidate_count, start_count, measured_count;
    work works[IN_FLIGHT], *work; /* of the last frames, by their number; of the last one */
    cml_report measured[IN_FLIGHT];
    int open, wall_clock, has_ended, rest_due; /* scheduler/feedback.py, where nothing is timed */
    double ended_ms, usual_ms, back_off;
    uint32_t without, since_rest; /* frames that ran nothing in a row, and since then */
    void (*planner)(cml_scheduler *s); /* replays: somebody else decides */
    void (*prepare)(cml_scheduler *s, cml_net *net, double ms);
    int (*start)(cml_scheduler *s, job *j); /* 0 where it has to wait, or was ended */
    int (*finish)(cml_scheduler *s, job *j);
#ifndef CML_CORE_ONLY
    cml_options options;
    WGPUQueue queue;
    WGPULimits limits;
    char name[256];
    int software, timed, lost;
    double last_ms, budget_ms;
    uint32_t lanes, each, stride; /* each: 1 or 2 timestamps of a pass; bytes from slice to slice */
    WGPUQuerySet queries;
    WGPUBuffer resolved, ranges; /* timestamps and receipts; which workgroups the slices are */
    uint8_t *range_words;
    homeward ring[RING]; /* where frames' timestamps and receipts go */
    cml_slice *told;
    cml_report refusal; /* of a call that encodes nothing */
    WGPUCommandEncoder encoder;
#endif
};

static int over(const job *j) { return j->at.state != CML_QUEUED && j->at.state != CML_RUNNING; }
static int has_failed(const job *j) { return j->at.state >= CML_CANCELLED; }
static int idle(const job *j) { return !(j->priority > 0); }

/* Memory for all that a frame needs; 0 where there is none. The numbers were set before. */
static int core_make(cml_scheduler *s) {
    s->jobs = taken(&s->memory, s->max_jobs, sizeof *s->jobs);
    s->live = taken(&s->memory, s->max_jobs, 3 * sizeof *s->live);
    s->starts = s->live + s->max_jobs;
    s->candidates = s->starts + s->max_jobs;
    planned *slices = taken(&s->memory, s->max_slices, IN_FLIGHT * sizeof *slices);
    for (uint32_t i = 0; i < IN_FLIGHT; i++)
        s->works[i].slices = slices + (size_t)s->max_slices * i;
    s->work = s->works;
    s->left[0] = s->left[1] = HUGE_VAL;
    s->usual_ms = s->frame_ms;
    s->back_off = 1.0;
    s->since_rest = REST_EVERY;
    s->model.error = log(2.5);
    return !s->memory.is_short;
}

/* The network's steps get their cost curves; 0 where there is no memory. */
static int adopt(cml_scheduler *s, cml_net *net) {
    if (net->adopted) return 1;
    for (uint32_t i = 0; i < net->step_count; i++) {
        net->steps[i].curve = curve_of(&s->memory, &s->model, net->steps[i].key);
        if (net->steps[i].curve == NULL) return 0;
    }
    if (!(s->model.launch_ms > 0)) { /* of one device all files say the same */
        s->model.launch_ms = net->f.guess.launch_ms;
        s->model.unknown_samples += net->f.guess.count > 0 ? GUESSED : 0;
    }
    net->adopted = 1;
    net->next = s->nets;
    s->nets = net;
    return 1;
}

/* Predicted GPU time of what is left of a job. */
static double remaining_ms(cml_scheduler *s, job *j) {
    cml_net *net = j->net;
    step *of = net->steps + j->at.step;
    if (over(j) || j->at.step >= net->step_count) return 0.0;
    if (net->after_frame != s->frame + 1 || !s->open) {
        net->after[net->step_count] = 0.0;
        for (uint32_t i = net->step_count; i-- > 0;)
            net->after[i] =
                net->after[i + 1] + predict(&s->model, net->steps + i, net->steps[i].groups);
        net->after_frame = s->open ? s->frame + 1 : 0;
    }
    return predict(&s->model, of, of->groups - j->at.group) + net->after[j->at.step + 1];
}

static void let_makers_go(job *j) {
    while (j->maker_count > 0) j->makers[--j->maker_count]->takers--;
}

static void insert_live(cml_scheduler *s, job *j) {
    uint32_t at = s->live_count++;
    for (; at > 0 && s->live[at - 1]->number > j->number; at--) s->live[at] = s->live[at - 1];
    s->live[at] = j;
}

/* Take a job out of the running. */
static void end_job(cml_scheduler *s, job *j, cml_state state, const char *why) {
    double *left = &s->left[idle(j)];
    uint32_t i = 0;
    if (over(j)) return;
    while (s->live[i] != j) i++;
    for (s->live_count--; i < s->live_count; i++) s->live[i] = s->live[i + 1];
    snprintf(j->error, sizeof j->error, "%s", why);
    j->at.state = state;
    *left = fmin(*left, j->at.virtual_ms);
    if (state != CML_DONE) let_makers_go(j); /* the end of one that is done may be taken back */
}

/* A place for a job: a free one, else that of one that failed and that nobody asks for; or NULL. */
static job *free_place(cml_scheduler *s) {
    job *found = NULL;
    for (job *j = s->jobs; j < s->jobs + s->max_jobs; j++) {
        if (j->at.state == CML_GONE) return j;
        if (has_failed(j) && j->takers == 0 && (found == NULL || j->number < found->number))
            found = j;
    }
    return found;
}

/* A new job starts level with the others: it may not make up for its absence. */
static void enlist(cml_scheduler *s, job *j) {
    for (uint32_t i = s->live_count; i-- > 0 && j->slot[0] != 0;)
        if (s->live[i]->at.state == CML_QUEUED && strcmp(s->live[i]->slot, j->slot) == 0)
            end_job(s, s->live[i], CML_CANCELLED, "superseded by a newer job of its slot");
    if (j->slot[0] != 0) s->left[0] = s->left[1] = HUGE_VAL;
    double level = s->left[idle(j)];
    for (uint32_t i = 0; i < s->live_count; i++)
        if (idle(s->live[i]) == idle(j)) level = fmin(level, s->live[i]->at.virtual_ms);
    j->at.virtual_ms = isinf(level) ? 0.0 : level;
    j->at.state = CML_QUEUED;
    insert_live(s, j);
}

/* -------------------------------------------------------------- whose turn it is (policy.py) */
static int comes_before(const cml_scheduler *s, const job *a, const job *b) {
    int in_time = s->policy == CML_BY_PRIORITY || (a->urgent && b->urgent);
    if (a == s->starved || b == s->starved) return a == s->starved;
    if (!in_time && a->urgent != b->urgent) return a->urgent;
    if (!in_time && idle(a) != idle(b)) return idle(b);
    if (!in_time && !same(a->at.virtual_ms, b->at.virtual_ms))
        return a->at.virtual_ms < b->at.virtual_ms;
    if (in_time && a->urgent && !same(a->laxity, b->laxity)) return a->laxity < b->laxity;
    if (!same(a->priority, b->priority)) return a->priority > b->priority;
    return a->number < b->number;
}

/* The candidates as the policy would run them, but first who got nothing for longest. */
static void put_in_order(cml_scheduler *s) {
    job **all = s->candidates;
    s->starved = NULL;
    for (uint32_t i = 0; i < s->candidate_count; i++) {
        job *j = all[i];
        const job *worst = s->starved;
        double laxity = j->deadline_at - s->now - j->remaining / fmax(s->rate, 1e-9);
        j->urgent = s->policy == CML_LEAST_LAXITY && j->dated && !idle(j) && laxity >= 0;
        j->laxity = laxity - (j->at.group || j->at.step ? 20.0 : 0.0);
        if (s->policy == CML_LEAST_LAXITY && s->now - j->last_served_ms > 500.0 && !idle(j) &&
            (worst == NULL || j->last_served_ms < worst->last_served_ms ||
             (same(j->last_served_ms, worst->last_served_ms) && j->number < worst->number)))
            s->starved = j;
    }
    for (uint32_t i = 1, k; i < s->candidate_count; i++) {
        job *j = all[i];
        for (k = i; k > 0 && comes_before(s, j, all[k - 1]); k--) all[k] = all[k - 1];
        all[k] = j;
    }
}

/* ------------------------------------------------------------------ the decision (plan.py) */
/* The job's next slices within `left` ms; whether that is all of it. */
static int slices_of(cml_scheduler *s, job *j, double *left) {
    work *w = s->work;
    uint32_t at = j->at.step, group = j->at.group;
    int probing = 0; /* what it takes must be known before more of it is added */
    while (at < j->net->step_count && w->slice_count < s->max_slices && !probing) {
        step *of = j->net->steps + at;
        uint32_t limit = of->groups - group;
        int alone = w->slice_count == 0;
        probing = !has_samples(of);
        if (*left <= (alone ? 0.0 : 0.02 * w->report.aim_ms)) break;
        uint32_t count = groups_within(&s->model, of, limit, probing ? *left * 0.25 : *left);
        if (s->granule > 1 && s->granule < count && count < limit) count -= count % s->granule;
        if (count == 0 && alone) count = (uint32_t)least(limit, s->granule);
        if (count == 0) break;
        w->slices[w->slice_count] = (planned){j, of, group, count, predict(&s->model, of, count)};
        *left -= w->slices[w->slice_count++].ms;
        group = count == limit ? 0 : group + count;
        at += count == limit;
    }
    return at >= j->net->step_count;
}

/* Slices in the policy's order until the aim is reached. */
static void decide(cml_scheduler *s, int behind, cml_reason otherwise) {
    work *w = s->work;
    double left = w->report.aim_ms;
    int whole = 1;
    w->slice_count = s->start_count = 0;
    w->report.reason = otherwise;
    if (s->planner != NULL) s->planner(s);
    else if (!(w->report.budget_ms > 0)) w->report.reason = CML_BUDGET;
    else if (behind) w->report.reason = CML_WAITING_FOR_GPU;
    if (s->planner != NULL || behind || !(w->report.budget_ms > 0)) return;
    put_in_order(s);
    for (uint32_t i = 0; i < s->candidate_count && whole; i++) {
        job *j = s->candidates[i];
        uint32_t before = w->slice_count, k = 0;
        int runs = j->at.state == CML_RUNNING;
        while (k < s->start_count && s->starts[k]->net->exclusive != j->net->exclusive) k++;
        if (!runs && k < s->start_count) continue;
        whole = slices_of(s, j, &left);
        if (!runs && (w->slice_count > before || whole)) s->starts[s->start_count++] = j;
    }
    if (!whole) w->report.reason = CML_BUDGET;
}

/* ------------------------------------------------------------------ a frame (filling.py, jobs/) */
/* Whether its inputs are there; it fails where one never will be. */
static int inputs_are_there(cml_scheduler *s, job *j) {
    int waits = 0;
    for (uint32_t i = 0; i < j->maker_count; i++) {
        waits |= !over(j->makers[i]);
        if (!has_failed(j->makers[i])) continue;
        end_job(s, j, CML_FAILED, "the job whose output it takes was cancelled or failed");
        return 0;
    }
    return !waits;
}

/* Those of the candidates that can run, now that one could not begin. Where it has to wait, so have
 * the others of its network; and those of a network that has been taken. */
static void sift(cml_scheduler *s, const job *refused) {
    const cml_net *held = refused == NULL || over(refused) ? NULL : refused->net->exclusive;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < s->candidate_count; i++) {
        job *j = s->candidates[i];
        int runs = j->at.state == CML_RUNNING, busy = j->net->exclusive == held;
        for (uint32_t k = 0; k < s->live_count; k++)
            busy |= s->live[k]->at.state == CML_RUNNING &&
                    s->live[k]->net->exclusive == j->net->exclusive;
        if (j != refused && !over(j) && (runs || (j->net->is_ready && !busy)))
            s->candidates[kept++] = j;
    }
    s->candidate_count = kept;
}

/* The jobs that could run now; networks that are not ready get on with it. Why there are none. */
static cml_reason gather(cml_scheduler *s, double budget) {
    cml_reason otherwise = CML_NOTHING_TO_DO;
    uint32_t unready = 0;
    cml_net *net;
    for (net = s->nets; net != NULL; net = net->next) net->is_wanted = 0;
    s->candidate_count = 0;
    for (uint32_t i = 0; i < s->live_count;) { /* makers are older than takers */
        job *j = s->live[i];
        int queued = j->at.state == CML_QUEUED, there = !queued || inputs_are_there(s, j);
        if (over(j)) continue;
        if (queued && (!there || j->paused)) otherwise = CML_ALL_WAITING;
        if (there && !j->paused) s->candidates[s->candidate_count++] = j;
        j->net->is_wanted |= queued && there && !j->paused;
        i++;
    }
    sift(s, NULL);
    for (net = s->nets; net != NULL; net = net->next) unready += net->is_wanted && !net->is_ready;
    for (net = s->nets; net != NULL; net = net->next)
        if (net->is_wanted && !net->is_ready) s->prepare(s, net, budget / unready);
    for (uint32_t i = 0; i < s->candidate_count; i++) {
        job *j = s->candidates[i];
        j->remaining = j->dated ? remaining_ms(s, j) : 0.0;
    }
    return unready > 0 ? CML_PREPARING : otherwise;
}

/* Runs of neighbours that are timed as one: a slice each where something is to be learned of single
 * steps, else a job each; of about the same predicted time where there are too many. */
static void make_groups(const cml_scheduler *s, work *w) {
    int by_job = s->frame % APART_EVERY != 0;
    uint32_t runs = 0;
    double target = 0, filled = 0;
    for (uint32_t i = 0; i < w->slice_count; i++)
        by_job &= w->slices[i].step->curve->samples >= KNOWN;
    for (uint32_t i = 0; i < w->slice_count; i++) {
        target += w->slices[i].ms;
        runs += !by_job || i == 0 || w->slices[i].job->net != w->slices[i - 1].job->net;
    }
    target /= s->max_groups;
    w->group_count = 0;
    for (uint32_t i = 0; i < w->slice_count; i++) {
        int opens = !by_job || i == 0 || w->slices[i].job->net != w->slices[i - 1].job->net;
        if (runs > s->max_groups)
            opens = i == 0 || (filled >= target && w->group_count < s->max_groups);
        if (opens) w->ms[w->group_count++] = -1;
        filled = (opens ? 0.0 : filled) + w->slices[i].ms;
        w->ends[w->group_count - 1] = i + 1;
    }
}

/* What the frame runs: decided, begun and taken account of, not encoded yet. `aim` is of a budget
 * that says so itself, else below 0. */
static void fill_frame(cml_scheduler *s, double now, double budget, double aim, int rests,
                       int behind) {
    work *w = s->work = s->works + s->frame % IN_FLIGHT;
    if (aim < 0) aim = aim_of(&s->model, budget) / s->back_off;
    s->now = now;
    s->rate = aim / s->frame_ms;
    w->report = (cml_report){.frame = s->frame, .now_ms = now, .budget_ms = budget,
                             .aim_ms = rests || s->rest_due ? 0.0 : aim, .measured_ms = -1};
    w->given = s->planner != NULL;
    s->left[0] = s->left[1] = HUGE_VAL;
    s->open = 1;
    for (uint32_t i = 0; i < s->live_count; i++) {
        s->live[i]->was = s->live[i]->at;
        s->live[i]->was_in = s->frame + 1;
    }
    cml_reason otherwise = gather(s, budget);
    for (int again = 1; again;) {
        decide(s, behind, otherwise);
        again = 0;
        for (uint32_t i = 0; i < s->start_count && !again; i++) {
            again = !s->start(s, s->starts[i]);
            if (again) sift(s, s->starts[i]);
            else s->starts[i]->at.state = CML_RUNNING;
        }
    }
    for (const planned *part = w->slices; part < w->slices + w->slice_count; part++) {
        job *j = part->job;
        int whole = part->first + part->count == part->step->groups;
        j->at.step = (uint32_t)(part->step - j->net->steps) + (whole ? 1 : 0);
        j->at.group = whole ? 0 : part->first + part->count;
        j->at.given_ms += part->ms;
        j->at.virtual_ms += part->ms / (idle(j) ? 1.0 : j->priority);
        j->last_served_ms = now;
        w->report.predicted_ms += part->ms;
    }
    w->report.slices = w->slice_count;
    make_groups(s, w);
}

/* The jobs that are through end, where there is memory for what they leave. */
static void finish_jobs(cml_scheduler *s) {
    for (uint32_t i = 0; i < s->live_count;) {
        job *j = s->live[i];
        int through = j->at.state == CML_RUNNING && j->at.step >= j->net->step_count;
        if (through && s->finish(s, j)) {
            end_job(s, j, CML_DONE, "");
            s->work->report.finished++;
        }
        i += i < s->live_count && s->live[i] == j;
    }
}

/* ------------------------------------------------------------------ learning (feedback.py) */
/* Whether a frame was late, perhaps for its networks' sake if it had some. */
static int judge(cml_scheduler *s, double interval, int some) {
    int late = interval > 1.15 * s->usual_ms;
    double weight = interval < s->usual_ms ? 0.1 : 0.0;
    s->without = some ? 0 : s->without + 1;
    s->since_rest = s->without > 1 ? 0 : s->since_rest + 1;
    s->rest_due &= s->without < 2;
    if (s->without > 0 || (late && same(s->back_off, 16.0))) weight = 0.25;
    if (s->without == 2) weight = 1.0;
    s->usual_ms += weight * (fmax(interval, s->frame_ms) - s->usual_ms);
    if (late && some && s->since_rest > REST_EVERY) s->rest_due = 1;
    else if (late && some) s->back_off = fmin(16.0, s->back_off * 1.25);
    else s->back_off = 1 + (s->back_off - 1) * pow(0.99, interval / s->frame_ms);
    return late;
}

/* What was guessed of steps is believed where a frame with them was in time. */
static void take_for_granted(cml_scheduler *s, work *w) {
    uint32_t guessed = 0;
    for (uint32_t i = 0; i < w->slice_count; i++)
        if (!has_samples(w->slices[i].step)) w->slices[guessed++] = w->slices[i];
    learn(&s->model, w->slices, guessed, -1);
}

static void learn_frame(cml_scheduler *s, work *w) {
    cml_report *r = &w->report;
    int known = 1;
    r->measured_ms = 0;
    for (uint32_t i = 0; i < w->group_count; i++) r->measured_ms += w->ms[i];
    for (uint32_t i = 0; i < w->slice_count; i++)
        known &= w->slices[i].step->curve->samples >= KNOWN;
    if (known && !w->given && r->predicted_ms > 0.25 * r->aim_ms && r->measured_ms > 0 &&
        !isinf(r->predicted_ms + r->measured_ms)) {
        double lifted = fmax(0.0, 0.25 * r->budget_ms - r->predicted_ms);
        remember(&s->model, r->predicted_ms + lifted, r->measured_ms + lifted,
                 r->measured_ms - r->predicted_ms > r->budget_ms);
    }
    for (uint32_t i = 0, first = 0; i < w->group_count; first = w->ends[i++])
        learn(&s->model, w->slices + first, w->ends[i] - first, w->ms[i]);
    s->measured[s->measured_count++] = *r;
}

/* A group of a frame's slices took so long. */
static void took(cml_scheduler *s, uint64_t frame, uint32_t group, double ms) {
    work *w = s->works + frame % IN_FLIGHT;
    if (!(ms >= 0) || isinf(ms)) return;
    if (w->report.frame == frame && group < w->group_count) w->ms[group] = ms;
    if (s->newest <= frame) s->newest = frame + 1;
}

/* The host has submitted the frame. What is older than the newest timings has all of its own. */
static void end_frame(cml_scheduler *s, double now) {
    double interval = fmin(now - s->ended_ms, 60 * s->frame_ms);
    for (job *j = s->jobs; j < s->jobs + s->max_jobs; j++) /* what began is for good */
        if (j->at.state != CML_QUEUED) let_makers_go(j);
    if (s->has_ended && s->wall_clock && !judge(s, interval, s->work->slice_count > 0))
        take_for_granted(s, s->work);
    if (s->wall_clock) s->work->slice_count = 0;
    s->has_ended = 1;
    s->ended_ms = now;
    s->open = 0;
    s->frame++;
    s->measured_count = 0;
    for (uint32_t i = 0; i < IN_FLIGHT; i++) { /* the oldest first */
        work *w = s->works + (s->frame + i) % IN_FLIGHT;
        if (w->slice_count == 0 || w->report.frame >= s->newest) continue;
        int all = 1;
        for (uint32_t k = 0; k < w->group_count; k++) all &= w->ms[k] >= 0;
        if (all) learn_frame(s, w);
        w->slice_count = 0;
    }
}

/* The frame will never run: its jobs go on from where they were. */
static void abandon_frame(cml_scheduler *s) {
    if (!s->open) return;
    for (job *j = s->jobs; j < s->jobs + s->max_jobs; j++) {
        if (j->was_in != s->frame + 1 || j->at.state == CML_GONE || has_failed(j)) continue;
        if (j->at.state == CML_DONE) insert_live(s, j);
        j->at = j->was;
    }
    s->work->slice_count = 0;
    s->open = 0;
    s->frame++;
}

#ifndef CML_CORE_ONLY
/* ------------------------------------------------------------------ the device */
/* --- what differs between implementations of webgpu.h, and between systems */
#ifdef CML_DAWN /* kernels are WGSL, run-time checks stay, timestamps are in nanoseconds */
enum { TAKES_SPIRV = 0, SUBGROUPS = WGPUFeatureName_Subgroups };
#define wgpuDeviceCreateShaderModuleTrusted(d, of, checks) wgpuDeviceCreateShaderModule(d, of)
#define wgpuQueueGetTimestampPeriod(queue) 1.0
#else
enum { TAKES_SPIRV = 1, SUBGROUPS = WGPUNativeFeature_Subgroup };
#endif

static void poll_device(cml_scheduler *s) { /* let callbacks run; never waits */
#ifdef CML_DAWN
    if (s->options.instance != NULL) wgpuInstanceProcessEvents(s->options.instance);
#else
    wgpuDevicePoll(s->options.device, 0, NULL);
#endif
}

#ifdef _WIN32
#include <windows.h>
static double machine_ms(void *unused) {
    LARGE_INTEGER now, second;
    QueryPerformanceCounter(&now);
    QueryPerformanceFrequency(&second);
    (void)unused;
    return 1e3 * (double)now.QuadPart / (double)second.QuadPart;
}

static long processors(void) { return (long)GetActiveProcessorCount(ALL_PROCESSOR_GROUPS); }
#else
#include <time.h>
#include <unistd.h>
static double machine_ms(void *unused) {
    struct timespec now;
    (void)unused;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return 1e3 * (double)now.tv_sec + 1e-6 * (double)now.tv_nsec;
}

static long processors(void) { return sysconf(_SC_NPROCESSORS_ONLN); }
#endif

/* --- help */
static const WGPUBufferUsage TENSORS =
    WGPUBufferUsage_Storage | WGPUBufferUsage_CopySrc | WGPUBufferUsage_CopyDst;
static const WGPUBufferUsage UNIFORMS = WGPUBufferUsage_Uniform | WGPUBufferUsage_CopyDst;
static const WGPUBufferUsage HOMEWARD = WGPUBufferUsage_MapRead | WGPUBufferUsage_CopyDst;

static uint64_t most(uint64_t a, uint64_t b) { return b > a ? b : a; }
static double now_of(const cml_scheduler *s) { return s->options.now_ms(s->options.now_user); }

static double steady_now(cml_scheduler *s) { /* a clock that goes back is not believed */
    double now = now_of(s);
    if (now > s->last_ms && !isinf(now)) s->last_ms = now;
    return s->last_ms;
}

static cml_text text_from(const char *data) { return (cml_text){data, strlen(data)}; }
static WGPUStringView view(cml_text text) { return (WGPUStringView){text.data, text.length}; }

static WGPUBuffer new_buffer(cml_scheduler *s, home *of, WGPUBufferUsage usage, uint64_t bytes) {
    WGPUBufferDescriptor wanted = {.label = view(text_from("cml")), .usage = usage};
    wanted.size = bytes < 256 ? 256 : (bytes + 3) / 4 * 4;
    of->made.buffers++;
    return wgpuDeviceCreateBuffer(s->options.device, &wanted);
}

static void drop_buffer(WGPUBuffer *buffer) {
    if (*buffer == NULL) return;
    wgpuBufferDestroy(*buffer);
    wgpuBufferRelease(*buffer);
    *buffer = NULL;
}

static void copy(cml_scheduler *s, WGPUBuffer from, uint64_t at, WGPUBuffer to, uint64_t there,
                 uint64_t bytes) {
    if (bytes > 0) wgpuCommandEncoderCopyBufferToBuffer(s->encoder, from, at, to, there, bytes);
}

/* --- errors of the device */
static void said(WGPUPopErrorScopeStatus status, WGPUErrorType type, WGPUStringView message,
                 void *to, void *unused) {
    cml_net *n = to;
    (void)unused;
    n->waiting--;
    if (status != WGPUPopErrorScopeStatus_Success || type == WGPUErrorType_NoError || n->refused)
        return;
    n->refused = type == WGPUErrorType_OutOfMemory ? CML_ERROR_MEMORY : CML_ERROR_DEVICE;
    if (message.data != NULL) /* which ends with a zero where its length is none */
        snprintf(n->refusal, sizeof n->refusal, "%.*s",
                 (int)least(message.length, sizeof n->refusal - 1), message.data);
}

static void listen(cml_scheduler *s) {
    wgpuDevicePushErrorScope(s->options.device, WGPUErrorFilter_OutOfMemory);
    wgpuDevicePushErrorScope(s->options.device, WGPUErrorFilter_Validation);
}

static cml_status refused(const cml_net *n) {
    return n->refused ? fail(n->f.error, n->refused, "the device refused: %s", n->refusal) : CML_OK;
}

static cml_status heard(cml_net *n) { /* as far as it answered */
    WGPUPopErrorScopeCallbackInfo info = {
        .mode = WGPUCallbackMode_AllowProcessEvents, .callback = said, .userdata1 = n};
    n->waiting += 2;
    wgpuDevicePopErrorScope(n->scheduler->options.device, info);
    wgpuDevicePopErrorScope(n->scheduler->options.device, info);
    return refused(n);
}

/* --- bytes on their way home */
static void came_home(WGPUMapAsyncStatus status, WGPUStringView message, void *to, void *unused) {
    homeward *h = to;
    int came = status == WGPUMapAsyncStatus_Success;
    (void)message;
    (void)unused;
    h->state = h->state == DROPPED ? FREE : came ? HERE : LOST;
}

/* Asked for where the frame that copies is old enough. (Callbacks run in the host's calls too.) */
static void ask_for(const cml_scheduler *s, homeward *h) {
    WGPUBufferMapCallbackInfo info = {
        .mode = WGPUCallbackMode_AllowProcessEvents, .callback = came_home, .userdata1 = h};
    if (h->state != COPIED || s->frame - h->frame < AGE) return;
    h->state = PENDING;
    wgpuBufferMapAsync(h->buffer, WGPUMapMode_Read, 0, (size_t)wgpuBufferGetSize(h->buffer), info);
}

/* It is not wanted any more; a callback that is still to come finds it dropped. */
static void let_go(homeward *h) {
    int mapped = h->state == PENDING || h->state == HERE;
    if (h->state != DROPPED) h->state = h->state == PENDING ? DROPPED : FREE;
    if (mapped) wgpuBufferUnmap(h->buffer);
}

/* Before its memory goes. With a device that never calls back it is better lost than written to. */
static int settled(cml_scheduler *s, homeward *h) {
    let_go(h);
    drop_buffer(&h->buffer);
    for (int tries = 0; h->state == DROPPED && tries < 1000; tries++) poll_device(s);
    return h->state != DROPPED;
}

/* --- loading */
/* Whether the device has what the plan needs; what it lacks first is added to `why`. */
static int fits(const cml_scheduler *s, const file *f, const plan *p, char *why, size_t room) {
    const WGPULimits *has = &s->limits;
    uint64_t groups = 0, half = 0, only_spirv = 0, width = has->maxComputeWorkgroupsPerDimension;
    size_t at = strlen(why);
    for (uint32_t i = 0; i < p->row->steps.count; i++) {
        const kernel_row *k = f->kernels + p->steps[i].kernel;
        groups = most(groups, p->steps[i].groups);
        half |= (k->flags & KERNEL_HALF) != 0;
        only_spirv |= k->wgsl.bytes == 0;
    }
#define LIMIT(name, needed) {#name, p->row->needed, has->name}
    const struct { const char *what; uint64_t wanted, got; } needs[] = {
        LIMIT(minStorageBufferOffsetAlignment, storage_alignment), /* at most; else at least */
        LIMIT(minUniformBufferOffsetAlignment, uniform_alignment),
        LIMIT(maxStorageBufferBindingSize, binding_size),
        LIMIT(maxBufferSize, buffer_size),
        LIMIT(maxComputeInvocationsPerWorkgroup, invocations),
        LIMIT(maxComputeWorkgroupStorageSize, workgroup_storage),
        LIMIT(maxStorageBuffersPerShaderStage, storage_buffers),
        {"lanes of a subgroup", p->row->lanes, s->lanes},
        {"workgroups", groups, width * width},
        {"shader-f16", half,
         wgpuDeviceHasFeature(s->options.device, WGPUFeatureName_ShaderF16) != 0},
        {"kernels in WGSL", f->only_wgsl && only_spirv, 0},
    };
#undef LIMIT
    for (size_t i = 0; i < sizeof needs / sizeof *needs; i++) {
        uint64_t wanted = needs[i].wanted, got = needs[i].got;
        if (i < 2 ? got <= wanted : got >= wanted) continue;
        snprintf(why + at, room - at, "%s'%.*s' needs %s %llu, the device has %llu", at ? "; " : "",
                 TEXT(p->profile), needs[i].what, LONG(wanted), LONG(got));
        return 0;
    }
    return 1;
}

/* The first plan that fits; on a software driver those that are made for one come first. */
static cml_status choose_plan(cml_scheduler *s, file *f, plan *p) {
    const block *before = f->memory->blocks;
    char why[400] = "";
    for (int any = !s->software; any < 2; any++) {
        why[0] = 0;
        for (uint32_t i = 0; i < f->plan_count; i++) {
            TRY(open_plan(f, i, p));
            if ((any || p->row->software) && fits(s, f, p, why, sizeof why)) return CML_OK;
            while (f->memory->blocks != before) given_back(f->memory, f->memory->blocks + 1);
        }
    }
    return fail(f->error, CML_ERROR_STALE,
                "no profile of the file fits this device: %s. Cook it for more devices", why);
}

/* Of a cost key's second word, else of that up to its last '-', else 1. */
static double factor_of(const file *f, cml_text key) {
    size_t at = 0, n = 0;
    while (at < key.length && key.data[at++] != ' ') {}
    while (at + n < key.length && key.data[at + n] != ' ') n++;
    for (int tries = 0; tries < 2; tries++) {
        for (uint32_t i = 0; i < f->guess.count; i++)
            if (same_text(text_of(f, f->factors[i].word), (cml_text){key.data + at, n}))
                return f->factors[i].factor;
        while (n > 0 && key.data[at + n - 1] != '-') n--;
        n -= n > 0;
    }
    return 1.0;
}

/* What is needed when the file's bytes are gone, and where each thing lies. */
static cml_status make_net(cml_net *n) {
    cml_scheduler *s = n->scheduler;
    home *from = &n->memory;
    const guess_row *guess = &n->f.guess;
    uint32_t count = n->p.row->steps.count, params = n->p.row->params.count;
    n->steps = taken(from, count, sizeof *n->steps);
    n->after = taken(from, (uint64_t)count + 1, sizeof *n->after);
    n->groups = taken(from, count, sizeof *n->groups);
    n->pipelines = taken(from, n->f.kernel_count, sizeof *n->pipelines);
    n->layouts = taken(from, n->f.kernel_count, sizeof *n->layouts);
    uint64_t longest = 0;
    for (uint32_t i = 0; i < n->p.row->pieces.count; i++)
        if (n->p.pieces[i].bytes > longest) longest = n->p.pieces[i].bytes;
    n->staging = taken(from, least(longest, CHUNK), 1);
    if (from->is_short) return fail(n->f.error, CML_ERROR_MEMORY, "no memory for its tables");
    for (uint32_t i = 0; i < count; i++) {
        const step_row *row = n->p.steps + i;
        cml_text key = text_of(&n->f, row->names[2]);
        double work = fmax(row->flops / guess->flops_per_ms, row->bytes / guess->bytes_per_ms);
        n->steps[i] = (step){
            .groups = row->groups, .factor = factor_of(&n->f, key),
            /* a stranger who says that its work is none is not believed */
            .work = n->trusted ? work : fmax(work, 1e-5), .key = key_of(key)};
    }
    n->step_count = count;
    n->exclusive = n;
    if (params > s->limits.maxBufferSize)
        return fail(n->f.error, CML_ERROR_STALE, "its parameters do not fit into one buffer");
    listen(s);
    for (int i = 0; i < SPACES; i++)
        n->spaces[i] = new_buffer(s, &n->memory, TENSORS, n->p.row->spaces[i]);
    n->uniforms = new_buffer(s, &n->memory, UNIFORMS, params);
    heard(n);
    if (params > 0 && !n->refused)
        wgpuQueueWriteBuffer(s->queue, n->uniforms, 0, n->p.params, params);
    return refused(n);
}

static void free_net(cml_net *n) {
    int safe = 1;
    for (homeward *r = n->results; r < n->results + MOST_RESULTS; r++) {
        safe &= settled(n->scheduler, r);
        drop_buffer(&r->from);
    }
    for (uint32_t i = 0; i < n->step_count; i++)
        if (n->groups[i] != NULL) wgpuBindGroupRelease(n->groups[i]);
    for (uint32_t i = 0; n->step_count > 0 && i < n->f.kernel_count; i++) {
        if (n->pipelines[i] != NULL) wgpuComputePipelineRelease(n->pipelines[i]);
        if (n->layouts[i] != NULL) wgpuBindGroupLayoutRelease(n->layouts[i]);
    }
    for (int i = 0; i < SPACES; i++) drop_buffer(&n->spaces[i]);
    drop_buffer(&n->uniforms);
    for (int i = 0; n->waiting > 0 && i < 1000; i++) poll_device(n->scheduler);
    if (safe && n->waiting == 0) all_given_back(n->memory);
}

static cml_status load(cml_net *n) {
    TRY(open_file(&n->f));
    TRY(open_kernels(&n->f));
    TRY(choose_plan(n->scheduler, &n->f, &n->p));
    TRY(open_guess(&n->f, text_from(n->scheduler->name)));
    return make_net(n);
}

cml_status cml_load(cml_scheduler *s, const void *bytes, size_t size, uint32_t flags, cml_net **net,
                    cml_error *error) {
    home memory = {.hook = s->options.allocator};
    cml_net *n = taken(&memory, 1, sizeof *n);
    *net = NULL;
    if (error != NULL) memset(error, 0, sizeof *error);
    if (n == NULL) return fail(error, CML_ERROR_MEMORY, "no memory for a network");
    n->memory = memory;
    n->scheduler = s;
    n->trusted = (flags & CML_TRUSTED) != 0;
    n->f = (file){.whole = {bytes, bytes ? size : 0}, .memory = &n->memory, .error = error,
                  .only_wgsl = !TAKES_SPIRV || !n->trusted, .trusted = n->trusted,
                  .limits = limits_of(&s->options.limits, n->trusted)};
    cml_status status = load(n);
    n->f.error = NULL;
    if (status == CML_OK) *net = n;
    else free_net(n);
    return status;
}

static cml_status build_kernel(cml_net *n, uint32_t index) {
    WGPUDevice device = n->scheduler->options.device;
    const kernel_row *k = n->f.kernels + index;
    const code_row *c = k->spirv.bytes > 0 && !n->f.only_wgsl ? &k->spirv : &k->wgsl;
    WGPUStringView label = view(text_of(&n->f, k->label));
    WGPUBindGroupLayoutEntry entries[66];
    void *code;
    TRY(take_code(&n->f, k, c, &code));
    for (uint32_t i = 0; i < k->tensors + 2; i++) {
        entries[i] = (WGPUBindGroupLayoutEntry){.binding = i};
        entries[i].visibility = WGPUShaderStage_Compute;
        entries[i].buffer.type = WGPUBufferBindingType_Storage;
        if (i < 2) entries[i].buffer.type = WGPUBufferBindingType_Uniform;
    }
    entries[0].buffer.hasDynamicOffset = 1;
    entries[0].buffer.minBindingSize = 16;
    entries[1].buffer.minBindingSize = k->params;
    WGPUBindGroupLayoutDescriptor bound = {.entryCount = k->tensors + 2, .entries = entries};
    WGPUPipelineLayoutDescriptor whole = {.bindGroupLayoutCount = 1};
    WGPUShaderSourceWGSL text = {{NULL, WGPUSType_ShaderSourceWGSL}, {code, c->bytes}};
    WGPUShaderSourceSPIRV words = {{NULL, WGPUSType_ShaderSourceSPIRV}, c->bytes / 4, code};
    WGPUShaderModuleDescriptor shader = {.label = label};
    shader.nextInChain = c == &k->wgsl ? &text.chain : &words.chain;
    listen(n->scheduler);
    whole.bindGroupLayouts = n->layouts + index;
    n->layouts[index] = wgpuDeviceCreateBindGroupLayout(device, &bound);
    WGPUPipelineLayout layout = wgpuDeviceCreatePipelineLayout(device, &whole);
    WGPUShaderModule module = n->trusted && k->flags & KERNEL_TRUSTED
                                  ? wgpuDeviceCreateShaderModuleTrusted(device, &shader, 0)
                                  : wgpuDeviceCreateShaderModule(device, &shader);
    WGPUComputePipelineDescriptor wanted = {.label = label, .layout = layout};
    wanted.compute.module = module;
    wanted.compute.entryPoint = view(text_from("main"));
    if (layout != NULL && module != NULL)
        n->pipelines[index] = wgpuDeviceCreateComputePipeline(device, &wanted);
    if (module != NULL) wgpuShaderModuleRelease(module);
    if (layout != NULL) wgpuPipelineLayoutRelease(layout);
    given_back(&n->memory, code);
    n->memory.made.pipelines++;
    return heard(n);
}

/* Encodes a step and throws it away: what the device has against it, as a binding that is smaller
 * than the kernel's array, it says here and not of the host's frame. */
static void rehearse(cml_net *n, uint32_t index) {
    const step_row *of = n->p.steps + index;
    WGPUComputePassDescriptor wanted = {.nextInChain = NULL};
    WGPUCommandEncoder encoder =
        wgpuDeviceCreateCommandEncoder(n->scheduler->options.device, NULL);
    WGPUComputePassEncoder pass = wgpuCommandEncoderBeginComputePass(encoder, &wanted);
    uint32_t at = 0;
    wgpuComputePassEncoderSetPipeline(pass, n->pipelines[of->kernel]);
    wgpuComputePassEncoderSetBindGroup(pass, 0, n->groups[index], 1, &at);
    wgpuComputePassEncoderDispatchWorkgroups(pass, 1, 1, 1);
    wgpuComputePassEncoderEnd(pass);
    wgpuComputePassEncoderRelease(pass);
    WGPUCommandBuffer commands = wgpuCommandEncoderFinish(encoder, NULL);
    if (commands != NULL) wgpuCommandBufferRelease(commands);
    wgpuCommandEncoderRelease(encoder);
}

static cml_status bind_step(cml_net *n, uint32_t index) {
    const step_row *of = n->p.steps + index;
    WGPUBindGroupEntry entries[66] = {
        {.binding = 0, .buffer = n->scheduler->ranges, .size = 16},
        {.binding = 1, .buffer = n->uniforms, .offset = of->params_at,
         .size = of->params}};
    for (uint32_t i = 0; i < of->bindings; i++) {
        const binding *at = n->p.bindings + of->first_binding + i;
        entries[i + 2] = (WGPUBindGroupEntry){
            .binding = i + 2, .buffer = n->spaces[at->space], .offset = at->at, .size = at->bytes};
    }
    WGPUBindGroupDescriptor wanted = {.layout = n->layouts[of->kernel], .entries = entries};
    wanted.entryCount = of->bindings + 2;
    listen(n->scheduler);
    n->groups[index] = wgpuDeviceCreateBindGroup(n->scheduler->options.device, &wanted);
    n->memory.made.bind_groups++;
    if (!n->trusted && n->groups[index] != NULL) rehearse(n, index);
    return heard(n);
}

/* Make and upload at most so many bytes of constants, until about then; whether all are there. */
static int upload(cml_net *n, uint64_t bytes, double end) {
    while (n->pieces_there < n->p.row->pieces.count) {
        const piece_row *r = n->p.pieces + n->pieces_there;
        uint64_t effort = r->matrix == UINT64_MAX ? 1 : 4; /* to compute a number takes longer */
        uint64_t left = least(r->bytes - n->uploaded, CHUNK);
        uint64_t chunk = least(left, bytes / effort / 4 * 4);
        if (chunk == 0) return 0;
        make_bytes(&n->f, r, n->uploaded, chunk, n->staging);
        wgpuQueueWriteBuffer(n->scheduler->queue, n->spaces[r->space], r->at + n->uploaded,
                             n->staging, (size_t)chunk);
        n->uploaded += chunk;
        bytes -= chunk * effort;
        if (n->uploaded == r->bytes) {
            n->pieces_there++;
            n->uploaded = 0;
        }
        if (now_of(n->scheduler) >= end && n->pieces_there < n->p.row->pieces.count) return 0;
    }
    if (n->staging != NULL) given_back(&n->memory, n->staging);
    n->staging = NULL;
    return 1;
}

/* Get on with what the network lacks, for about so long, but at least a step of it. */
static cml_status advance(cml_net *n, double ms, uint64_t bytes, uint32_t groups) {
    double end = now_of(n->scheduler) + ms;
    TRY(refused(n));
    if (n->is_ready) return CML_OK;
    if (!upload(n, bytes, end)) return CML_PENDING;
    for (; n->bound < n->step_count; n->bound++) {
        uint32_t index = n->p.steps[n->bound].kernel;
        if (n->layouts[index] == NULL) {
            TRY(build_kernel(n, index));
            if (now_of(n->scheduler) >= end) return CML_PENDING;
        }
        if (n->pipelines[index] == NULL || groups-- == 0) return CML_PENDING;
        TRY(bind_step(n, n->bound));
    }
    n->is_ready = n->waiting == 0;
    return n->is_ready ? CML_OK : CML_PENDING;
}

cml_status cml_build(cml_net *n, double ms, cml_error *error) {
    n->f.error = error;
    cml_status status = advance(n, ms, UINT64_MAX, UINT32_MAX);
    n->f.error = NULL;
    poll_device(n->scheduler);
    return status;
}

cml_status cml_input_shape(const cml_net *n, uint32_t index, cml_shape *shape) {
    if (index < n->p.inputs.count) *shape = n->p.inputs.of[index].shape;
    return index < n->p.inputs.count ? CML_OK : CML_ERROR_INPUT;
}

cml_status cml_output_shape(const cml_net *n, uint32_t index, cml_shape *shape) {
    if (index < n->p.outputs.count) *shape = n->p.outputs.of[index].shape;
    return index < n->p.outputs.count ? CML_OK : CML_ERROR_INPUT;
}

cml_net_info cml_info(const cml_net *n) {
    const plan_row *p = n->p.row;
    return (cml_net_info){n->p.profile, p->steps.count, p->spaces[ARENA], p->spaces[WEIGHTS],
                          p->spaces[OWN], p->flops, (double)p->gas};
}

/* --- jobs on the device */
static void drop_inputs(job *j) {
    for (; j->source_count > 0; j->source_count--) {
        struct source *from = j->sources + j->source_count - 1;
        if (from->buffer != NULL) wgpuBufferRelease(from->buffer);
    }
}

static void drop_result(job *j) {
    if (j->result == NULL) return;
    let_go(j->result);
    j->result->used = 0;
    j->result = NULL;
}

/* What jobs hold and need no more is free, and so are places of jobs that were released and that
 * nobody takes from any more. While a frame is open all may be taken back. */
static void tidy(cml_scheduler *s) {
    for (job *j = s->jobs; j < s->jobs + s->max_jobs && !s->open; j++) {
        int unwanted = over(j) && j->released && j->takers == 0;
        if (j->at.state != CML_QUEUED) drop_inputs(j);
        if (j->at.state == CML_QUEUED || has_failed(j) || unwanted) drop_result(j);
        if (unwanted) j->at.state = CML_GONE;
    }
}

/* Cancels a network's jobs and releases them. */
static void end_jobs_of(cml_scheduler *s, const cml_net *net) {
    for (job *j = s->jobs; j < s->jobs + s->max_jobs; j++) {
        if (j->at.state == CML_GONE || j->net != net) continue;
        end_job(s, j, CML_CANCELLED, "its network was unloaded");
        j->released = 1;
    }
}

/* Fails the jobs that wait for an output of the network. */
static void fail_takers_of(cml_scheduler *s, const cml_net *net) {
    for (job *j = s->jobs; j < s->jobs + s->max_jobs; j++) {
        int takes = 0;
        if (over(j)) continue;
        for (uint32_t i = 0; i < j->maker_count; i++) takes |= j->makers[i]->net == net;
        if (takes) end_job(s, j, CML_FAILED, "the network whose output it takes was unloaded");
    }
}

/* Frees a network that no open frame uses, and all that points into it. */
static void remove_net(cml_scheduler *s, cml_net *net) {
    cml_net **at = &s->nets;
    end_jobs_of(s, net);
    fail_takers_of(s, net);
    for (job *j = s->jobs; j < s->jobs + s->max_jobs; j++) {
        if (j->at.state == CML_GONE || j->net != net) continue;
        drop_inputs(j);
        drop_result(j);
        j->at.state = CML_GONE;
    }
    while (*at != NULL && *at != net) at = &(*at)->next;
    if (*at != NULL) *at = net->next;
    for (work *w = s->works; w < s->works + IN_FLIGHT; w++) w->slice_count = 0;
    for (uint32_t i = 0; i < s->max_slices; i++) s->told[i].op = s->told[i].title = text_from("");
    free_net(net);
}

/* The frame has ended, or was abandoned: networks that were unloaded meanwhile go. */
static void remove_unloaded(cml_scheduler *s) {
    cml_net *next;
    for (cml_net *net = s->nets; net != NULL; net = next) {
        next = net->next;
        if (net->is_unloaded) remove_net(s, net);
    }
}

void cml_unload(cml_scheduler *s, cml_net *net) {
    if (net == NULL || net->is_unloaded) return;
    if (!net->adopted || !s->open || s->lost) {
        remove_net(s, net);
        return;
    }
    end_jobs_of(s, net); /* the host's encoder may have work of it, and may yet be abandoned */
    net->is_unloaded = 1;
}

static void prepare_net(cml_scheduler *s, cml_net *net, double ms) {
    uint64_t bytes = most((uint64_t)(ms * UPLOAD_PER_MS), LEAST_UPLOAD);
    cml_error error;
    net->f.error = &error;
    cml_status status = advance(net, ms, bytes, BOUND_PER_FRAME);
    net->f.error = NULL;
    for (job *j = s->jobs; j < s->jobs + s->max_jobs && status > CML_PENDING; j++)
        if (j->net == net) end_job(s, j, CML_FAILED, error.text);
}

/* Where there is memory for its outputs, what another job left or new, its inputs are copied. */
static int start_on_device(cml_scheduler *s, job *j) {
    cml_net *n = j->net;
    const places *inputs = &n->p.inputs;
    homeward *r = n->results, *end = r + MOST_RESULTS;
    while (r < end && (r->used || r->state != FREE)) r++;
    if (r == end) return 0;
    if (r->from == NULL) {
        listen(s);
        r->from = new_buffer(s, &n->memory, TENSORS, n->p.outputs.bytes);
        if (heard(n) != CML_OK || r->from == NULL) {
            drop_buffer(&r->from);
            end_job(s, j, CML_FAILED, "the device has no memory for its outputs");
            return 0;
        }
    }
    if (n->wrong) {
        end_job(s, j, CML_FAILED, "the variables of its network are wrong, for a frame that "
                "changed them was never submitted: load it again");
        return 0;
    }
    r->used = 1;
    j->result = r;
    j->worked |= n->worked;
    for (uint32_t i = 0; i < inputs->count; i++) {
        const struct source *from = j->sources + i;
        if (from->maker != NULL) j->worked |= from->maker->worked;
        const place *to = inputs->of + i;
        WGPUBuffer space = n->spaces[to->at.space];
        WGPUBuffer made = from->maker == NULL ? from->buffer : from->maker->result->from;
        if (made != NULL) copy(s, made, from->at, space, to->at.at, to->shape.bytes);
        else if (to->shape.bytes > 0)
            wgpuQueueWriteBuffer(s->queue, space, to->at.at, j->data + to->among,
                                 (size_t)to->shape.bytes);
    }
    return 1;
}

static int finish_on_device(cml_scheduler *s, job *j) {
    const plan *p = &j->net->p;
    WGPUBuffer *spaces = j->net->spaces;
    for (uint32_t i = 0; i < p->outputs.count; i++) {
        const place *from = p->outputs.of + i;
        copy(s, spaces[from->at.space], from->at.at, j->result->from, from->among,
             from->shape.bytes);
    }
    for (uint32_t i = 0; i < p->row->updates.count; i++) {
        binding old = p->updates[i].from, new = p->updates[i].to;
        copy(s, spaces[old.space], old.at, spaces[new.space], new.at, least(old.bytes, new.bytes));
        j->net->worked |= j->worked;
    }
    return 1;
}

static job *found(cml_scheduler *s, cml_job handle) {
    for (job *j = s->jobs; j < s->jobs + s->max_jobs; j++)
        if (j->number == handle && j->at.state != CML_GONE) return j;
    return NULL;
}

static const place *named(const places *all, const char *name) {
    for (uint32_t i = 0; i < all->count && name != NULL; i++)
        if (same_text(all->of[i].shape.name, text_from(name))) return all->of + i;
    return NULL;
}

/* One input of a job to be: what is wrong with it, or how it will come. */
static cml_status accept_input(cml_scheduler *s, job *to, const cml_input *in, cml_error *error) {
    const place *at = named(&to->net->p.inputs, in->name);
#define WRONG(...) return fail(error, CML_ERROR_INPUT, __VA_ARGS__)
    if (at == NULL) WRONG("the network has no input '%s'", in->name ? in->name : "");
    const cml_shape *shape = &at->shape;
    struct source *from = to->sources + (at - to->net->p.inputs.of);
    if (from->given) WRONG("input '%s' is given twice", in->name);
    from->given = 1;
    if (in->data != NULL || shape->bytes == 0) {
        if (shape->layout != CML_PLAIN || in->bytes != shape->bytes)
            WRONG("input '%s': wanted %llu bytes, got %llu", in->name, LONG(shape->bytes),
                  LONG(in->bytes));
        if (in->bytes > 0) memcpy(to->data + at->among, in->data, in->bytes);
    } else if (in->buffer != NULL) {
        uint64_t size = wgpuBufferGetSize(in->buffer);
        if (in->offset % 4 != 0 || !is_inside(in->offset, shape->bytes, size))
            WRONG("input '%s': %llu bytes at %llu are not in its buffer of %llu", in->name,
                  LONG(shape->bytes), LONG(in->offset), LONG(size));
        wgpuBufferAddRef(in->buffer);
        from->buffer = in->buffer;
        from->at = in->offset;
    } else {
        job *maker = found(s, in->job);
        if (maker == NULL || maker->released || has_failed(maker))
            WRONG("input '%s' has no data, or its job has no outputs", in->name);
        const place *made = named(&maker->net->p.outputs, in->output);
        if (made == NULL) WRONG("input '%s': the job has no such output", in->name);
        if (made->shape.bytes != shape->bytes || made->shape.type != shape->type ||
            made->shape.layout != shape->layout)
            WRONG("input '%s': the job's output is of another shape or type", in->name);
        if (to->maker_count == MOST_TAKEN) WRONG("a job takes at most %d tensors", MOST_TAKEN);
        from->maker = to->makers[to->maker_count++] = maker;
        from->at = made->among;
    }
#undef WRONG
    return CML_OK;
}

cml_status cml_submit(cml_scheduler *s, cml_net *n, const cml_input *inputs, size_t count,
                      const cml_job_options *options, cml_job *handle, cml_error *error) {
    cml_job_options wanted = options ? *options : (cml_job_options){0.0, 0.0, NULL};
    double given = wanted.priority, deadline = wanted.deadline_ms;
    job *j = free_place(s);
    cml_status status = CML_OK;
    *handle = 0;
    if (s->lost) return fail(error, CML_ERROR_DEVICE, "the device was lost");
    if (!(deadline >= 0) || isinf(deadline + given) || !(given >= 0 || same(given, CML_IDLE)))
        return fail(error, CML_ERROR_INPUT, "the priority or deadline is no number of 0 or more");
    if (wanted.slot != NULL && strlen(wanted.slot) >= SLOT_NAME)
        return fail(error, CML_ERROR_INPUT, "the slot's name has %d bytes or more", SLOT_NAME);
    if (j == NULL)
        return fail(error, CML_ERROR_FULL, "there are %u jobs: release some", s->max_jobs);
    if (count != n->p.inputs.count)
        return fail(error, CML_ERROR_INPUT, "the network has %u inputs, got %u",
                    n->p.inputs.count, (unsigned)count);
    drop_inputs(j); /* who failed here is forgotten */
    drop_result(j);
    if (j->room < n->p.inputs.bytes) {
        given_back(&s->memory, j->data);
        j->data = taken(&s->memory, n->p.inputs.bytes, 1);
        j->room = j->data == NULL ? 0 : n->p.inputs.bytes;
    }
    job made = {.net = n, .data = j->data, .room = j->room, .source_count = n->p.inputs.count};
    if (made.room < n->p.inputs.bytes || !adopt(s, n))
        status = fail(error, CML_ERROR_MEMORY, "no memory for a job");
    for (size_t i = 0; i < count && status == CML_OK; i++)
        status = accept_input(s, &made, inputs + i, error);
    if (status != CML_OK) {
        drop_inputs(&made);
        return status;
    }
    made.number = *handle = ++s->numbers;
    made.priority = given < 0 ? 0.0 : given > 0 ? given : 1.0;
    made.last_served_ms = steady_now(s);
    made.dated = deadline > 0;
    made.deadline_at = made.last_served_ms + deadline;
    snprintf(made.slot, sizeof made.slot, "%s", wanted.slot ? wanted.slot : "");
    for (uint32_t i = 0; i < made.maker_count; i++) made.makers[i]->takers++;
    *j = made;
    enlist(s, j);
    return CML_OK;
}

cml_job_info cml_job_state(cml_scheduler *s, cml_job handle) {
    job *j = found(s, handle);
    if (j == NULL) return (cml_job_info){.state = CML_GONE, .error = ""};
    cml_job_info told = {j->at.state, j->paused, j->at.state == CML_DONE, 0.0, j->error};
    if (over(j)) return told;
    double left = remaining_ms(s, j), ahead = 0;
    if (left + j->at.given_ms > 0) told.progress = j->at.given_ms / (left + j->at.given_ms);
    s->candidate_count = 0;
    for (uint32_t i = 0; i < s->live_count; i++) {
        s->live[i]->remaining = remaining_ms(s, s->live[i]);
        if (!s->live[i]->paused || s->live[i] == j)
            s->candidates[s->candidate_count++] = s->live[i];
    }
    s->now = steady_now(s);
    put_in_order(s);
    for (uint32_t i = 0; s->candidates[i] != j; i++) ahead += s->candidates[i]->remaining;
    told.eta_ms = (ahead + left) / fmax(s->rate, 1e-9) + s->frame_ms;
    return told;
}

void cml_cancel(cml_scheduler *s, cml_job handle) {
    job *j = found(s, handle);
    if (j != NULL) end_job(s, j, CML_CANCELLED, "cancelled by the host");
}

void cml_pause(cml_scheduler *s, cml_job handle, int paused) {
    job *j = found(s, handle);
    if (j != NULL) j->paused = paused;
}

void cml_release(cml_scheduler *s, cml_job handle) {
    job *j = found(s, handle);
    if (j == NULL) return;
    end_job(s, j, CML_CANCELLED, "released by the host");
    j->released = 1;
    tidy(s);
}

/* The output of a job that is done, and its place; NULL otherwise. */
static const place *output_of(job *j, const char *name) {
    int is_there = j != NULL && j->at.state == CML_DONE && !j->released && j->result != NULL;
    return is_there ? named(&j->net->p.outputs, name) : NULL;
}

cml_status cml_tensor_of(cml_scheduler *s, cml_job handle, const char *output, cml_tensor *tensor) {
    job *j = found(s, handle);
    const place *from = output_of(j, output);
    if (j != NULL && !over(j)) return CML_PENDING;
    if (from == NULL) return CML_ERROR_INPUT;
    *tensor = (cml_tensor){j->result->from, from->among, from->shape.bytes, from->shape};
    return CML_OK;
}

cml_status cml_read(cml_scheduler *s, cml_job handle, const char *output, void *data, size_t bytes,
                    cml_error *error) {
    job *j = found(s, handle);
    const place *from = output_of(j, output);
    const void *here = data;
    if (j != NULL) j->wants_read |= !over(j) || from != NULL;
    if (j != NULL && !over(j)) return CML_PENDING;
    if (from == NULL || from->shape.layout != CML_PLAIN || bytes != from->shape.bytes)
        return fail(error, CML_ERROR_INPUT, "no plain output '%s' of %llu bytes: %s",
                    output ? output : "", LONG(bytes),
                    j != NULL && j->error[0] ? j->error : "see cml_output_shape");
    if (j->result->state != HERE && j->result->state != LOST) return CML_PENDING;
    if (bytes > 0 && j->result->state == HERE)
        here = wgpuBufferGetConstMappedRange(j->result->buffer, (size_t)from->among, bytes);
    if (j->result->state == LOST || here == NULL)
        return fail(error, CML_ERROR_DEVICE, "the readback failed: the device is lost");
    if (bytes > 0) memcpy(data, here, bytes);
    return CML_OK;
}

/* --- frames */
/* A pass with the slot's next timestamps, where there are any. */
static WGPUComputePassEncoder begin_pass(cml_scheduler *s, homeward *slot) {
    WGPUPassTimestampWrites writes = {.querySet = s->queries};
    WGPUComputePassDescriptor wanted = {.nextInChain = NULL};
    if (slot != NULL && s->timed) {
        uint32_t at = s->each * ((uint32_t)(slot - s->ring) * (TIMED + 1) + slot->passes++);
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

static void dispatch(cml_scheduler *s, WGPUComputePassEncoder pass, uint32_t slice) {
    const planned *part = s->work->slices + slice;
    const cml_net *n = part->job->net;
    uint32_t step = (uint32_t)(part->step - n->steps), at = s->stride * slice;
    uint32_t width = s->limits.maxComputeWorkgroupsPerDimension, count = part->count;
    uint32_t words[4] = {part->first, part->first + count, width, 0};
    memcpy(s->range_words + at, words, sizeof words);
    s->told[slice] = (cml_slice){part->job->number, step, part->first, count, part->ms,
                                 text_of(&n->f, n->p.steps[step].names[0]),
                                 text_of(&n->f, n->p.steps[step].names[1])};
    wgpuComputePassEncoderSetPipeline(pass, n->pipelines[n->p.steps[step].kernel]);
    wgpuComputePassEncoderSetBindGroup(pass, 0, n->groups[step], 1, &at);
    wgpuComputePassEncoderDispatchWorkgroups(pass, count <= width ? count : width,
                                             count <= width ? 1 : (count - 1) / width + 1, 1);
}

/* The slices, a pass for each group that is timed. */
static void encode_slices(cml_scheduler *s) {
    const work *w = s->work;
    uint32_t number = s->frame % RING, i = 0;
    homeward *slot = w->slice_count > 0 && s->ring[number].state == FREE ? s->ring + number : NULL;
    if (slot != NULL) {
        slot->passes = 0;
        slot->frame = s->frame;
        slot->state = COPIED;
        /* each is timed from the end of the one before */
        if (s->each == 1 && s->timed) end_pass(begin_pass(s, slot));
    }
    for (uint32_t group = 0; group < w->group_count; group++) {
        WGPUComputePassEncoder pass = begin_pass(s, slot);
        for (; i < w->ends[group]; i++) {
            dispatch(s, pass, i);
            if (slot != NULL) w->slices[i].job->worked |= 1u << number;
        }
        end_pass(pass);
    }
    if (i > 0) wgpuQueueWriteBuffer(s->queue, s->ranges, 0, s->range_words, (size_t)s->stride * i);
    if (slot == NULL) return;
    if (slot->passes > 0) {
        uint32_t at = number * SLOT_BYTES;
        wgpuCommandEncoderResolveQuerySet(s->encoder, s->queries, s->each * number * (TIMED + 1),
                                          s->each * slot->passes, s->resolved, at);
        copy(s, s->resolved, at, slot->buffer, 0, 8 * s->each * slot->passes);
    }
    copy(s, s->resolved, RING * SLOT_BYTES + 4 * (s->frame % RECEIPTS), slot->buffer,
         SLOT_BYTES - 4, 4);
}

const cml_report *cml_encode(cml_scheduler *s, WGPUCommandEncoder encoder, double budget_ms) {
    double start = now_of(s);
    uint32_t behind = 0;
    if (s->open || s->lost) {
        s->refusal.reason = s->lost ? CML_DEVICE_ERROR : CML_FRAME_NOT_ENDED;
        return &s->refusal;
    }
    s->encoder = encoder;
    for (uint32_t i = 0; i < RING; i++) behind += s->ring[i].state == PENDING;
    if (budget_ms >= 0 && !isinf(budget_ms)) s->budget_ms = budget_ms;
    fill_frame(s, steady_now(s), s->budget_ms, -1.0, 0, behind >= s->options.max_frames_in_flight);
    encode_slices(s);
    finish_jobs(s);
    for (job *j = s->jobs; j < s->jobs + s->max_jobs; j++) { /* what cml_read waits for */
        homeward *r = j->at.state == CML_DONE && j->wants_read ? j->result : NULL;
        if (r == NULL || r->state != FREE) continue;
        uint64_t bytes = wgpuBufferGetSize(r->from);
        if (r->buffer == NULL) r->buffer = new_buffer(s, &j->net->memory, HOMEWARD, bytes);
        if (r->buffer == NULL) continue;
        copy(s, r->from, 0, r->buffer, 0, bytes);
        r->frame = s->frame;
        r->state = COPIED;
    }
    s->work->report.cpu_ms = now_of(s) - start;
    return &s->work->report;
}

const cml_slice *cml_slices(const cml_scheduler *s) { return s->told; }

/* A frame was ended and never ran: jobs that had work in it, or read what those have written, have
   wrong results. */
static void fail_harmed(cml_scheduler *s, uint32_t slot) {
    for (cml_net *n = s->nets; n != NULL; n = n->next) n->wrong |= n->worked >> slot & 1;
    for (job *j = s->jobs; j < s->jobs + s->max_jobs; j++) {
        if (j->at.state == CML_GONE || !(j->worked >> slot & 1)) continue;
        end_job(s, j, CML_FAILED, "");
        if (j->at.state == CML_CANCELLED) continue;
        j->at.state = CML_FAILED; /* even where it was done */
        snprintf(j->error, sizeof j->error, "a frame was encoded and never submitted: its result "
                 "would be wrong. Submit every encoder, or call cml_abandon_frame()");
    }
}

static void forget_slot(cml_scheduler *s, uint32_t slot) {
    for (job *j = s->jobs; j < s->jobs + s->max_jobs; j++) j->worked &= ~(1u << slot);
    for (cml_net *n = s->nets; n != NULL; n = n->next) n->worked &= ~(1u << slot);
}

/* What has arrived of a slot: its timings, or that its frame never ran. */
static void take_slot(cml_scheduler *s, const homeward *slot) {
    const uint8_t *data = wgpuBufferGetConstMappedRange(slot->buffer, 0, SLOT_BYTES);
    uint32_t index = (uint32_t)(slot - s->ring), count = 0, receipt = 0;
    double tick_ms = 1e-6 * (double)wgpuQueueGetTimestampPeriod(s->queue);
    uint64_t ticks[2];
    if (data != NULL) memcpy(&receipt, data + SLOT_BYTES - 4, 4);
    if (data != NULL && receipt != slot->frame % RECEIPTS + 1) fail_harmed(s, index);
    else if (data != NULL) count = slot->passes - (slot->passes > 0 && s->each == 1);
    for (uint32_t i = 0; i < count; i++) {
        memcpy(ticks, data + 8 * s->each * i, sizeof ticks);
        took(s, slot->frame, i, ticks[1] > ticks[0] ? (double)(ticks[1] - ticks[0]) * tick_ms : 0);
    }
    forget_slot(s, index);
}

uint32_t cml_end_frame(cml_scheduler *s) {
    if (!s->open || s->lost) return s->measured_count = 0;
    for (homeward *slot = s->ring; slot < s->ring + RING; slot++) ask_for(s, slot);
    for (job *j = s->jobs; j < s->jobs + s->max_jobs; j++)
        if (j->result != NULL) ask_for(s, j->result);
    poll_device(s);
    for (homeward *slot = s->ring; slot < s->ring + RING; slot++) {
        if (slot->state == HERE) take_slot(s, slot);
        if (slot->state == HERE || slot->state == LOST) let_go(slot);
    }
    end_frame(s, steady_now(s));
    tidy(s);
    remove_unloaded(s);
    return s->measured_count;
}

const cml_report *cml_measured(const cml_scheduler *s, uint32_t index) {
    return index < s->measured_count ? s->measured + index : NULL;
}

void cml_abandon_frame(cml_scheduler *s) {
    for (homeward *slot = s->ring; slot < s->ring + RING && s->open; slot++)
        if (slot->frame == s->frame && slot->state != FREE) {
            let_go(slot);
            forget_slot(s, (uint32_t)(slot - s->ring));
        }
    for (job *j = s->jobs; j < s->jobs + s->max_jobs && s->open; j++)
        if (j->result != NULL && j->result->frame == s->frame) let_go(j->result);
    abandon_frame(s);
    tidy(s);
    remove_unloaded(s);
}

void cml_device_lost(cml_scheduler *s) {
    s->lost = 1;
    while (s->live_count > 0) end_job(s, s->live[0], CML_FAILED, "the device was lost");
}

cml_counts cml_made(const cml_scheduler *s) {
    cml_counts made = s->memory.made;
    for (const cml_net *net = s->nets; net != NULL; net = net->next) {
        made.host_blocks += net->memory.made.host_blocks;
        made.buffers += net->memory.made.buffers;
        made.bind_groups += net->memory.made.bind_groups;
        made.pipelines += net->memory.made.pipelines;
    }
    return made;
}

/* --- coming and going */
static void look_at_device(cml_scheduler *s) {
    WGPUDevice device = s->options.device;
    WGPUAdapterInfo info = {.nextInChain = NULL};
    wgpuDeviceGetLimits(device, &s->limits);
    if (s->options.adapter != NULL) wgpuAdapterGetInfo(s->options.adapter, &info);
    snprintf(s->name, sizeof s->name, "%.*s (%.*s)",
             (int)(info.device.data ? info.device.length : 0), info.device.data,
             (int)(info.description.data ? info.description.length : 0), info.description.data);
    s->software = info.adapterType == WGPUAdapterType_CPU;
    s->timed = wgpuDeviceHasFeature(device, WGPUFeatureName_TimestampQuery) != 0;
    if (wgpuDeviceHasFeature(device, (WGPUFeatureName)SUBGROUPS) ||
        wgpuDeviceHasFeature(device, WGPUFeatureName_Subgroups))
        s->lanes = info.subgroupMinSize;
    const char *at = strstr(s->name, " bits"); /* llvmpipe states a range, and takes these */
    while (at != NULL && at > s->name && at[-1] >= '0' && at[-1] <= '9') at--;
    if (s->lanes > 0 && at != NULL && strstr(s->name, "llvmpipe") != NULL && atoi(at) > 0)
        s->lanes = (uint32_t)atoi(at) / 32;
    if (s->options.adapter != NULL) wgpuAdapterInfoFreeMembers(info);
    s->each = s->software ? 1 : 2; /* there a timestamp takes 20 to 50 us */
    s->stride = (uint32_t)most(s->limits.minUniformBufferOffsetAlignment, 16);
}

cml_status cml_create(const cml_options *options, cml_scheduler **made, cml_error *error) {
    home memory = {.hook = options->allocator};
    WGPUQuerySetDescriptor queries = {.type = WGPUQueryType_Timestamp};
    WGPUBufferUsage usage = WGPUBufferUsage_CopySrc | WGPUBufferUsage_CopyDst;
    uint32_t table[RECEIPTS];
    *made = NULL;
    if (options->device == NULL) return fail(error, CML_ERROR_INPUT, "options.device is NULL");
    cml_scheduler *s = taken(&memory, 1, sizeof *s);
    if (s == NULL) return fail(error, CML_ERROR_MEMORY, "no memory for a scheduler");
    *s = (cml_scheduler){
        .memory = memory, .options = *options, .policy = options->policy, .max_groups = TIMED,
        .granule = options->granule, .refusal = {.measured_ms = -1},
        .model = {.over_share = options->over_share > 0 ? options->over_share : 0.01},
        .frame_ms = options->frame_ms > 0 ? options->frame_ms : 1000.0 / 60,
        .max_jobs = options->max_jobs ? options->max_jobs : 64,
        .max_slices = options->max_slices ? options->max_slices : 256,
        .prepare = prepare_net, .start = start_on_device, .finish = finish_on_device};
    look_at_device(s);
    if (s->options.now_ms == NULL) s->options.now_ms = machine_ms;
    if (s->options.max_frames_in_flight == 0) s->options.max_frames_in_flight = 4;
    if (s->granule == 0) s->granule = s->software && processors() > 0 ? (uint32_t)processors() : 1;
    s->wall_clock = !s->timed;
    s->told = taken(&s->memory, s->max_slices, sizeof *s->told);
    s->range_words = taken(&s->memory, s->max_slices, s->stride);
    if (!core_make(s)) {
        all_given_back(s->memory);
        return fail(error, CML_ERROR_MEMORY, "no memory for a scheduler and its jobs");
    }
    s->queue = options->queue ? options->queue : wgpuDeviceGetQueue(options->device);
    queries.count = 2 * RING * (TIMED + 1);
    if (s->timed) s->queries = wgpuDeviceCreateQuerySet(options->device, &queries);
    if (s->timed) usage |= WGPUBufferUsage_QueryResolve;
    s->resolved = new_buffer(s, &s->memory, usage, RING * SLOT_BYTES + 4 * RECEIPTS);
    s->ranges = new_buffer(s, &s->memory, UNIFORMS, (uint64_t)s->stride * s->max_slices);
    for (uint32_t i = 0; i < RECEIPTS; i++) table[i] = i + 1;
    wgpuQueueWriteBuffer(s->queue, s->resolved, RING * SLOT_BYTES, table, sizeof table);
    for (uint32_t i = 0; i < RING; i++)
        s->ring[i].buffer = new_buffer(s, &s->memory, HOMEWARD, SLOT_BYTES);
    *made = s;
    return CML_OK;
}

void cml_destroy(cml_scheduler *s) {
    int safe = 1;
    if (s == NULL) return;
    cml_abandon_frame(s);
    while (s->nets != NULL) remove_net(s, s->nets);
    for (uint32_t i = 0; i < RING; i++) safe &= settled(s, s->ring + i);
    drop_buffer(&s->resolved);
    drop_buffer(&s->ranges);
    if (s->queries != NULL) wgpuQuerySetRelease(s->queries);
    if (s->options.queue == NULL) wgpuQueueRelease(s->queue);
    if (safe) all_given_back(s->memory);
}
#endif
