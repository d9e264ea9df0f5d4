/* Checks cooked files without a device:
 *
 *     check FILE...         prints "whole", or the status and the message
 *     check -               the same for files that are named on standard input
 *     check --limited FILE  the same within the default limits
 *     check --flip FILE     changes every byte in turn, and cuts the file at every length:
 *                           all of that must be refused
 *     check --sealed FILE   changes every byte and makes the hashes match: errors may come of it,
 *                           and nothing else
 *     check --values FILE   prints the SHA-256 of each plan's buffers
 *     check --wgsl FILE...  prints whether a shader compiler may have each kernel's text
 */
#include "internal.h"

enum { HEADER = sizeof(file_header), SECTION = sizeof(section_row) };

static const cml_limits ENDLESS = {UINT64_MAX, UINT64_MAX, UINT32_MAX, UINT32_MAX};

static uint32_t u32(const uint8_t *p) {
    uint32_t n;
    memcpy(&n, p, sizeof n);
    return n;
}

static uint64_t u64(const uint8_t *p) { return u32(p) | (uint64_t)u32(p + 4) << 32; }

static uint8_t *whole(const char *path, size_t *size) {
    FILE *in = fopen(path, "rb");
    uint8_t *data;
    long end;
    if (in == NULL) return NULL;
    fseek(in, 0, SEEK_END);
    end = ftell(in);
    rewind(in);
    data = malloc((size_t)end + 1);
    *size = fread(data, 1, (size_t)end, in);
    fclose(in);
    return data;
}

/* A block of exactly that size, so that a sanitizer sees who reads beyond it. */
static cml_status checked(const uint8_t *data, size_t size, const cml_limits *limits,
                          cml_error *error) {
    uint8_t *exact = malloc(size > 0 ? size : 1);
    cml_status status;
    memcpy(exact, data, size);
    status = cml_check(exact, size, limits, NULL, error);
    free(exact);
    if (status != CML_OK && error->text[0] == 0) {
        printf("an error without a text\n");
        exit(1);
    }
    return status;
}

/* Enough of what is not looked into byte by byte. */
static int is_left_out(const uint8_t *data, size_t at) {
    uint32_t count = u32(data + 12), i;
    for (i = 0; i < count && i < COOKED_MOST_SECTIONS; i++) {
        const uint8_t *row = data + HEADER + SECTION * i;
        if (memcmp(row, "code", 4) == 0 && at > u64(row + 8) + 64 &&
            at < u64(row + 8) + u64(row + 16))
            return at % 16 != 0;
    }
    return 0;
}

static int flip(uint8_t *data, size_t size) {
    cml_error error;
    size_t i, accepted = 0;
    for (i = 0; i < size; i++) {
        if (is_left_out(data, i)) continue;
        data[i] ^= (uint8_t)(1 << i / 16 % 8);
        accepted += checked(data, size, &ENDLESS, &error) == CML_OK;
        data[i] ^= (uint8_t)(1 << i / 16 % 8);
        accepted += checked(data, i, &ENDLESS, &error) == CML_OK;
    }
    printf("%zu bytes, %zu accepted\n", size, accepted);
    return accepted > 0;
}

/* The hashes of the section that holds byte `at`, and of the table. */
static void seal(uint8_t *data, size_t at) {
    uint32_t count = u32(data + 12), i;
    for (i = 0; i < count; i++) {
        uint8_t *row = data + HEADER + SECTION * i;
        if (at >= u64(row + 8) && at < u64(row + 8) + u64(row + 16))
            cml__sha256(data + u64(row + 8), (size_t)u64(row + 16), row + 32);
    }
    cml__sha256(data + HEADER, (size_t)SECTION * count, data + 24);
}

static int sealed(uint8_t *data, size_t size) {
    static const uint8_t values[] = {0xFF};
    uint8_t *before = malloc(size);
    cml_error error;
    size_t i, k, refused_count = 0, accepted = 0;
    memcpy(before, data, size);
    for (i = HEADER + (size_t)SECTION * u32(data + 12); i < size; i++)
        for (k = 0; k < sizeof values && !is_left_out(data, i); k++) {
            data[i] ^= values[k];
            seal(data, i);
            if (checked(data, size, &ENDLESS, &error) == CML_OK)
                accepted++;
            else
                refused_count++;
            memcpy(data, before, HEADER + (size_t)SECTION * u32(before + 12));
            data[i] = before[i];
        }
    for (i = HEADER; i < HEADER + (size_t)SECTION * u32(before + 12); i++) /* the table itself */
        for (k = 0; k < sizeof values; k++) {
            data[i] ^= values[k];
            cml__sha256(data + HEADER, (size_t)SECTION * u32(data + 12), data + 24);
            refused_count += checked(data, size, &ENDLESS, &error) != CML_OK;
            memcpy(data, before, HEADER + (size_t)SECTION * u32(before + 12));
        }
    free(before);
    printf("%zu refused, %zu accepted\n", refused_count, accepted);
    return 0;
}

static int scan(const char *path) {
    heap memory = {.blocks = NULL};
    size_t size = 0;
    uint8_t *data = whole(path, &size);
    const char *problem;
    if (data == NULL) return 2;
    char *exact = malloc(size > 0 ? size : 1);
    memcpy(exact, data, size);
    if (cml__scan_wgsl(&memory, exact, size, &problem) == CML_OK)
        printf("taken\n");
    else
        printf("refused: it %s\n", problem);
    free(exact);
    free(data);
    return 0;
}

static int say(const char *path, const cml_limits *limits) {
    cml_error error;
    size_t size = 0;
    uint8_t *data = whole(path, &size);
    if (data == NULL) return 2;
    if (checked(data, size, limits, &error) == CML_OK)
        printf("whole\n");
    else
        printf("%d %s\n", (int)error.status, error.text);
    free(data);
    return 0;
}

static int say_all_on_stdin(void) {
    char path[4096];
    int bad = 0;
    setvbuf(stdout, NULL, _IOLBF, BUFSIZ);
    printf("ready\n");
    while (bad == 0 && fgets(path, sizeof path, stdin) != NULL) {
        path[strcspn(path, "\n")] = 0;
        bad = say(path, NULL);
    }
    return bad;
}

/* The SHA-256 of each plan's buffers of constants, in parts of 1000 bytes as they are uploaded. */
static int digests(const uint8_t *data, size_t size) {
    heap memory = {.allocator = {NULL, NULL, NULL}};
    cml_error error;
    file f = {.whole = {data, size}, .memory = &memory, .error = &error, .limits = ENDLESS};
    int bad = cml__open_file(&f) != CML_OK || cml__open_kernels(&f) != CML_OK;
    for (uint32_t number = 0; number < f.plan_count && !bad; number++) {
        plan p;
        uint8_t digest[32], *spaces[SPACES];
        bad = cml__open_plan(&f, number, &p) != CML_OK;
        for (int i = 0; i < SPACES && !bad; i++)
            spaces[i] = cml__heap_alloc(&memory, p.row->spaces[i] + 1, 1);
        for (uint32_t i = 0; !bad && i < p.row->constants.count; i++)
            for (uint64_t at = 0; at < p.pieces[i].nbytes; at += 1000)
                cml__make_bytes(&f, p.pieces + i, at, min_u64(1000, p.pieces[i].nbytes - at),
                                spaces[p.pieces[i].space] + p.pieces[i].offset + at);
        for (int i = WEIGHTS; i < SPACES && !bad; i++) {
            cml__sha256(spaces[i], (size_t)p.row->spaces[i], digest);
            for (int k = 0; k < 32; k++) printf("%02x", digest[k]);
            printf("\n");
        }
    }
    if (bad) printf("%s\n", error.text);
    cml__heap_free_all(memory);
    return bad;
}

int main(int argc, char **argv) {
    int i, bad = 0, mode = argc >= 3 && argv[1][0] == '-' ? argv[1][2] : 0;
    if (argc == 2 && strcmp(argv[1], "-") == 0) return say_all_on_stdin();
    if (mode == 'w') {
        for (i = 2; i < argc && bad == 0; i++) bad = scan(argv[i]);
        return bad;
    }
    if (mode == 0 || mode == 'l') {
        for (i = mode ? 2 : 1; i < argc && bad == 0; i++)
            bad = say(argv[i], mode ? NULL : &ENDLESS);
        return bad;
    }
    size_t size = 0;
    uint8_t *data = whole(argv[2], &size);
    if (data == NULL) return 2;
    bad = mode == 'v' ? digests(data, size) : mode == 'f' ? flip(data, size) : sealed(data, size);
    free(data);
    return bad;
}
