/* Checks cooked files without a device:
 *
 *     check -               prints "whole", or the status and the message, for each of the files
 *                           that are named on standard input
 *     check --flip FILE     changes every byte in turn, and cuts the file at every length:
 *                           all of that must be refused
 *     check --sealed FILE   changes every byte and makes the hashes match: errors may come of it,
 *                           and nothing else
 *     check --plans FILE    prints the profile that each device on standard input gets; a line has
 *                           the alignment of offsets, the storage buffers, the lanes of a subgroup,
 *                           1 if the device is a CPU, and 1 if it has shader-f16
 *     check --values FILE   prints the SHA-256 of each plan's buffers
 *     check --wgsl FILE...  prints whether a shader compiler may have each kernel's text
 */
#include "internal.h"

/* Returns a copy in a block of exactly that size, so that a sanitizer sees reads beyond it. */
static uint8_t *copy_exactly(const uint8_t *data, size_t size) {
    uint8_t *exact = malloc(size > 0 ? size : 1);
    if (exact == NULL) exit(3);
    memcpy(exact, data, size);
    return exact;
}

static uint8_t *read_whole(const char *path, size_t *size) {
    static uint8_t data[64 << 20];
    FILE *in = fopen(path, "rb");
    if (in == NULL) exit(2);
    *size = fread(data, 1, sizeof data, in);
    fclose(in);
    return copy_exactly(data, *size);
}

static cml_status check_bytes(const uint8_t *data, size_t size, cml_error *error) {
    uint8_t *exact = copy_exactly(data, size);
    cml_status status = cml_check(exact, size, NULL, NULL, error);
    free(exact);
    if (status != CML_OK && error->text[0] == 0) {
        printf("an error without a text\n");
        exit(1);
    }
    return status;
}

/* ------------------------------------------------------------------ changed files */

static uint32_t section_count(const uint8_t *data) {
    uint32_t count;
    memcpy(&count, data + offsetof(file_header, sections), sizeof count);
    return count;
}

static size_t table_bytes(const uint8_t *data) { return sizeof(section_row) * section_count(data); }

static section_row read_row(const uint8_t *data, uint32_t number) {
    section_row row;
    memcpy(&row, data + sizeof(file_header) + sizeof row * number, sizeof row);
    return row;
}

/* Returns 1 for most bytes of the kernels' code: their hash covers them, and there are many. */
static int is_left_out(const uint8_t *data, size_t at) {
    for (uint32_t i = 0; i < section_count(data) && i < COOKED_MOST_SECTIONS; i++) {
        section_row row = read_row(data, i);
        if (memcmp(row.tag, "code", 4) == 0 && at > row.offset + 64 && at < row.offset + row.nbytes)
            return at % 16 != 0;
    }
    return 0;
}

static int flip(uint8_t *data, size_t size) {
    cml_error error;
    size_t accepted = 0;
    for (size_t i = 0; i < size; i++) {
        if (is_left_out(data, i)) continue;
        uint8_t bit = (uint8_t)(1 << i / 16 % 8);
        data[i] ^= bit;
        if (check_bytes(data, size, &error) == CML_OK) accepted++;
        data[i] ^= bit;
        if (check_bytes(data, i, &error) == CML_OK) accepted++;
    }
    printf("%zu bytes, %zu accepted\n", size, accepted);
    return accepted > 0;
}

static void seal_table(uint8_t *data) {
    cml__sha256(data + sizeof(file_header), table_bytes(data),
                data + offsetof(file_header, table_digest));
}

/* Makes the hash of the section that holds byte `at` match, and that of the table. */
static void seal(uint8_t *data, size_t at) {
    for (uint32_t i = 0; i < section_count(data); i++) {
        section_row row = read_row(data, i);
        if (at < row.offset || at >= row.offset + row.nbytes) continue;
        size_t place = sizeof(file_header) + sizeof row * i + offsetof(section_row, digest);
        cml__sha256(data + row.offset, (size_t)row.nbytes, data + place);
    }
    seal_table(data);
}

static int check_sealed(uint8_t *data, size_t size) {
    uint8_t *before = copy_exactly(data, size);
    size_t head = sizeof(file_header), end = head + table_bytes(data);
    size_t refused = 0, accepted = 0;
    cml_error error;
    for (size_t i = head; i < size; i++) {
        if (i >= end && is_left_out(before, i)) continue;
        data[i] ^= 0xFF;
        if (i < end)
            seal_table(data); /* a changed row of the table itself */
        else
            seal(data, i);
        if (check_bytes(data, size, &error) == CML_OK)
            accepted++;
        else
            refused++;
        memcpy(data, before, end);
        data[i] = before[i];
    }
    free(before);
    printf("%zu refused, %zu accepted\n", refused, accepted);
    return 0;
}

/* ------------------------------------------------------------------ what is printed of a file */

static void print_scan(const char *path) {
    heap memory = {.blocks = NULL};
    size_t size = 0;
    uint8_t *data = read_whole(path, &size);
    const char *problem;
    if (cml__scan_wgsl(&memory, (const char *)data, size, &problem) == CML_OK)
        printf("taken\n");
    else
        printf("refused: it %s\n", problem);
    free(data);
}

static void print_verdicts(void) {
    char path[4096];
    setvbuf(stdout, NULL, _IOLBF, BUFSIZ);
    printf("ready\n");
    while (fgets(path, sizeof path, stdin) != NULL) {
        cml_error error;
        size_t size = 0;
        path[strcspn(path, "\n")] = 0;
        uint8_t *data = read_whole(path, &size);
        if (check_bytes(data, size, &error) == CML_OK)
            printf("whole\n");
        else
            printf("%d %s\n", (int)error.status, error.text);
        free(data);
    }
}

/* Prints the SHA-256 of a plan's buffers, made in parts of 1000 bytes as frames upload them. */
static cml_status print_buffers(file *f, uint32_t number) {
    enum { PART = 1000 };
    uint8_t digest[32], *spaces[SPACES];
    plan p;
    TRY(cml__open_plan(f, number, &p));
    for (int i = 0; i < SPACES; i++)
        spaces[i] = cml__heap_alloc(f->memory, p.row->spaces[i] + 1, 1);
    if (f->memory->exhausted) return cml__fail(f->error, CML_ERROR_MEMORY, "no memory");
    for (uint32_t i = 0; i < p.row->constants.count; i++) {
        const constant_row *r = &p.constants[i];
        for (uint64_t at = 0; at < r->nbytes; at += PART)
            cml__make_bytes(f, r, at, min_u64(PART, r->nbytes - at),
                            spaces[r->space] + r->offset + at);
    }
    for (int i = WEIGHTS; i < SPACES; i++) {
        cml__sha256(spaces[i], (size_t)p.row->spaces[i], digest);
        for (int k = 0; k < 32; k++) printf("%02x", digest[k]);
        printf("\n");
    }
    return CML_OK;
}

static cml_status print_values(file *f) {
    TRY(cml__open_file(f));
    TRY(cml__open_kernels(f));
    for (uint32_t i = 0; i < f->plan_count; i++) TRY(print_buffers(f, i));
    return CML_OK;
}

static int check_values(const uint8_t *data, size_t size) {
    heap memory = {.blocks = NULL};
    cml_error error;
    file f = cml__file_of(data, size, NULL, 1);
    f.memory = &memory;
    f.error = &error;
    cml_status status = print_values(&f);
    if (status != CML_OK) printf("%s\n", error.text);
    cml__heap_free_all(memory);
    return status != CML_OK;
}

/* ------------------------------------------------------------------ the choice of a plan */

static int print_plans(const uint8_t *data, size_t size) {
    cml_device_info info = {.buffer_bytes = 1 << 30,
                            .binding_bytes = 1 << 27,
                            .threads = 256,
                            .shared_bytes = 16384,
                            .groups_per_dimension = 65535,
                            .takes_spirv = 1,
                            .takes_wgsl = 1};
    cml_needs needs;
    cml_error error;
    while (scanf("%u %u %u %d %d", &info.storage_alignment, &info.storage_buffers, &info.lanes,
                 &info.is_software, &info.has_half) == 5) {
        info.uniform_alignment = info.storage_alignment;
        cml_status status = cml_get_needs(&info, data, size, CML_TRUSTED, &needs, &error);
        printf("%s\n", status == CML_OK ? needs.profile : error.text);
    }
    return 0;
}

int main(int argc, char **argv) {
    const char *mode = argc > 1 ? argv[1] : "";
    size_t size = 0;
    int code = 2;
    if (strcmp(mode, "-") == 0) {
        print_verdicts();
        return 0;
    }
    if (strcmp(mode, "--wgsl") == 0) {
        for (int i = 2; i < argc; i++) print_scan(argv[i]);
        return 0;
    }
    if (argc != 3) return code;
    uint8_t *data = read_whole(argv[2], &size);
    if (strcmp(mode, "--plans") == 0) code = print_plans(data, size);
    if (strcmp(mode, "--values") == 0) code = check_values(data, size);
    if (strcmp(mode, "--flip") == 0) code = flip(data, size);
    if (strcmp(mode, "--sealed") == 0) code = check_sealed(data, size);
    free(data);
    return code;
}
