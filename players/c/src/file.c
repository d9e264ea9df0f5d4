/* Opens a cooked file (docs/cooked.md): its header, sections, kernels and first guesses. Everything
 * that is read is checked before, because files come from strangers. */
#include "internal.h"

/* Replaces a span of the file by a copy, which is aligned. */
static cml_status copy_span(file *f, span *of) {
    void *copy = cml__heap_alloc(f->memory, of->size, 1);
    if (copy == NULL) return NO_MEMORY(f->error, "the file's tables");
    if (of->size > 0) memcpy(copy, of->data, (size_t)of->size);
    of->data = copy;
    return CML_OK;
}

static int has_tag(const section_row *row, const char *tag) {
    return strncmp((const char *)row->tag, tag, sizeof row->tag) == 0;
}

static int has_digest(span data, const uint8_t digest[32]) {
    uint8_t actual[32];
    cml__sha256(data.data, (size_t)data.size, actual);
    return memcmp(actual, digest, 32) == 0;
}

/* Finds a section and checks its hash. A SECTION_OPTIONAL one that is missing gives NULL. */
cml_status cml__find_section(file *f, const char *tag, uint32_t number, section_use use,
                             span *section) {
    *section = (span){NULL, 0};
    for (uint32_t i = 0; i < f->section_count; i++) {
        const section_row *row = f->sections + i;
        if (!has_tag(row, tag) || row->number != number) continue;
        *section = (span){f->contents.data + row->offset, row->nbytes};
        if (!f->hashed[i] && !has_digest(*section, row->digest))
            return BAD(
                f,
                "the section '%.8s' %u is damaged (its SHA-256 is another): copy or cook it again",
                tag, number);
        f->hashed[i] = 1;
        return use == SECTION_REQUIRED ? CML_OK : copy_span(f, section);
    }
    return use == SECTION_OPTIONAL ? CML_OK : BAD(f, "there is no section '%.8s' %u", tag, number);
}

/* Returns the limits that the host states, else the defaults; a trusted file has none. */
static cml_limits limits_of(const cml_limits *stated, int trusted) {
    cml_limits limits = {UINT64_MAX, UINT64_MAX, UINT32_MAX, UINT32_MAX};
    if (!trusted) limits = (cml_limits)COOKED_DEFAULT_LIMITS;
    if (stated == NULL) return limits;
    if (stated->code_bytes) limits.code_bytes = stated->code_bytes;
    if (stated->device_bytes) limits.device_bytes = stated->device_bytes;
    if (stated->kernels) limits.kernels = stated->kernels;
    if (stated->steps) limits.steps = stated->steps;
    return limits;
}

/* Returns a file to open, whose `memory` and `error` are still to be set. */
file cml__file_of(const void *bytes, size_t size, const cml_limits *limits, int trusted) {
    return (file){.contents = {bytes, bytes != NULL ? size : 0},
                  .trusted = trusted,
                  .limits = limits_of(limits, trusted)};
}

static cml_status check_limits(file *f) {
    const struct {
        const char *name;
        uint64_t total, limit;
    } rows[] = {
        {"code_bytes", f->totals.code_bytes, f->limits.code_bytes},
        {"device_bytes", f->totals.device_bytes, f->limits.device_bytes},
        {"kernels", f->totals.kernels, f->limits.kernels},
        {"steps", f->totals.steps, f->limits.steps},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i].total > rows[i].limit)
            return cml__fail(
                f->error, CML_ERROR_LIMIT,
                "the file states %llu %s, the limit is %llu: raise it in cml_limits if you "
                "trust the file",
                ULL(rows[i].total), rows[i].name, ULL(rows[i].limit));
    return CML_OK;
}

/* Checks the header and the table of sections, not their contents. */
cml_status cml__open_file(file *f) {
    static const uint8_t magic[8] = {0x89, 'C', 'M', 'L', '\r', '\n', 0x1A, '\n'};
    static const char *const single[] = COOKED_SINGLE_SECTIONS;
    uint64_t size = f->contents.size, end;
    file_header head;
    memset(&head, 0, sizeof head);
    if (size >= sizeof head) memcpy(&head, f->contents.data, sizeof head);
    if (memcmp(head.magic, magic, 8) != 0)
        return BAD(f, "it does not begin as one: `cml cook MODEL -o net.cml` makes one");
    if (head.format != COOKED_FORMAT)
        return cml__fail(
            f->error, CML_ERROR_STALE,
            "the file has format %u, this player reads %d: cook it anew, or take a newer player",
            head.format, COOKED_FORMAT);
    if (head.nbytes != size)
        return BAD(f, "it states %llu bytes, and has %llu: copy or cook it again", ULL(head.nbytes),
                   ULL(size));
    span table = {f->contents.data + sizeof head, sizeof *f->sections * (uint64_t)head.sections};
    end = sizeof head + table.size;
    if (head.sections > COOKED_MOST_SECTIONS || end > size || !ALL_ZERO(head.reserved_80) ||
        !has_digest(table, head.table_digest))
        return BAD(f, "its header, or its table of sections, is damaged: copy or cook it again");
    f->totals = (cml_limits){head.totals.code_bytes, head.totals.device_bytes, head.totals.kernels,
                             head.totals.steps};
    TRY(check_limits(f));
    TRY(copy_span(f, &table));
    f->sections = (const void *)table.data;
    f->section_count = head.sections;
    for (uint32_t i = 0; i < head.sections; i++) {
        const section_row *row = f->sections + i;
        int order = i == 0 ? 1 : memcmp(row->tag, row[-1].tag, 8), n = 0;
        while (n < 8 && row->tag[n] > 32 && row->tag[n] < 127) n++;
        if (n == 0 || !is_zero(row->tag + n, 8 - (uint64_t)n) || !ALL_ZERO(row->reserved_28) ||
            order < 0 || row->number != (order > 0 ? 0 : row[-1].number + 1))
            return BAD(f, "section %u is out of its order", i);
        if (row->offset % COOKED_SECTION_ALIGNMENT != 0 || row->offset < end ||
            row->offset - end >= COOKED_SECTION_ALIGNMENT ||
            !is_inside(row->offset, row->nbytes, size) ||
            !is_zero(f->contents.data + end, row->offset - end))
            return BAD(f, "section %u lies outside of it, or in another, or not next to it", i);
        end = row->offset + row->nbytes;
        if (has_tag(row, "plan")) f->plan_count++;
        for (size_t k = 0; k < sizeof single / sizeof *single; k++)
            if (row->number > 0 && has_tag(row, single[k]))
                return BAD(f, "it has several sections '%s'", single[k]);
    }
    return end == size ? CML_OK : BAD(f, "there is something behind its last section");
}

/* Returns the number of bytes of the UTF-8 character at `p`; 0 if it is invalid. */
static size_t letter_bytes(const uint8_t *p, size_t left) {
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000}; /* by the number of bytes */
    size_t count = p[0] < 0xE0 ? 2 : p[0] < 0xF0 ? 3 : 4;
    uint32_t code = p[0] & 0x7Fu >> count;
    if (p[0] < 0x80) return 1;
    if (p[0] < 0xC0 || p[0] > 0xF7 || count > left) return 0;
    for (size_t i = 1; i < count; i++) {
        if ((p[i] & 0xC0) != 0x80) return 0;
        code = code << 6 | (p[i] & 0x3F);
    }
    int is_surrogate = code >= 0xD800 && code < 0xE000;
    return code < least[count] || code > 0x10FFFF || is_surrogate ? 0 : count;
}

int cml__is_text(const file *f, text_row t) {
    if (!is_inside(t.offset, t.length, f->strings.size) || t.length > COOKED_MOST_TEXT) return 0;
    const uint8_t *p = f->strings.data + t.offset;
    for (size_t left = t.length; left > 0;) {
        size_t n = letter_bytes(p, left);
        if (n == 0) return 0;
        left -= n;
        p += n;
    }
    return 1;
}

/* Kernels' code lies one behind the other, so that none is unpacked twice. `end`: of the last. */
static int is_code(const file *f, const code_row *c, uint64_t *end) {
    if (c->packed == 0) return c->offset == 0 && c->nbytes == 0;
    if (c->offset != *end || !is_inside(c->offset, c->packed, f->code.size)) return 0;
    *end += c->packed;
    /* deflate expands to at most 1032 times the packed size */
    return c->nbytes > 0 && c->nbytes <= (uint64_t)c->packed * COOKED_MOST_SMALLER;
}

static int is_kernel(const file *f, const kernel_row *k, uint64_t *end) {
    return cml__is_text(f, k->label) && k->params_bytes % 16 == 0 && k->params_bytes > 0 &&
           k->params_bytes <= COOKED_MOST_PARAMS && k->tensors > 0 &&
           k->tensors <= COOKED_MOST_TENSORS &&
           k->flags <= (COOKED_TRUSTED | COOKED_SUBGROUPS | COOKED_F16) &&
           ALL_ZERO(k->reserved_52) && ALL_ZERO(k->reserved_88) && is_code(f, &k->spirv, end) &&
           is_code(f, &k->wgsl, end) && k->spirv.nbytes % 4 == 0 &&
           (k->spirv.nbytes > 0 || k->wgsl.nbytes > 0);
}

cml_status cml__open_kernels(file *f) {
    span table;
    uint64_t end = 0, unpacked_bytes = 0;
    TRY(cml__find_section(f, "strings", 0, SECTION_COPIED, &f->strings));
    TRY(cml__find_section(f, "code", 0, SECTION_REQUIRED, &f->code));
    TRY(cml__find_section(f, "values", 0, SECTION_REQUIRED, &f->values));
    TRY(cml__find_section(f, "kernels", 0, SECTION_COPIED, &table));
    const kernels_head *head = (const void *)table.data;
    if (table.size < sizeof *head || !ALL_ZERO(head->reserved_4) ||
        table.size != sizeof *head + sizeof *f->kernels * (uint64_t)head->count)
        return BAD(f, "its table of kernels is damaged");
    f->kernel_count = head->count;
    f->kernels = (const void *)(head + 1);
    for (uint32_t i = 0; i < f->kernel_count; i++)
        if (!is_kernel(f, f->kernels + i, &end)) return BAD(f, "kernel %u is damaged", i);
    for (uint32_t i = 0; i < f->kernel_count; i++)
        unpacked_bytes += (uint64_t)f->kernels[i].spirv.nbytes + f->kernels[i].wgsl.nbytes;
    if (end != f->code.size || unpacked_bytes != f->totals.code_bytes ||
        f->kernel_count != f->totals.kernels)
        return BAD(f, "its kernels have another total than its header states");
    return CML_OK;
}

/* Unpacks a kernel's code into a new block; NULL if the kernel has none in that language. */
static cml_status unpack_code(file *f, const kernel_row *k, const code_row *c, void **out) {
    static const uint8_t spirv[4] = {0x03, 0x02, 0x23, 0x07};
    *out = c->nbytes == 0 ? NULL : cml__heap_alloc(f->memory, c->nbytes, 1);
    if (c->nbytes == 0) return CML_OK;
    if (*out == NULL) return NO_MEMORY(f->error, "a kernel of %u bytes", c->nbytes);
    if (cml__inflate(f->code.data + c->offset, c->packed, *out, c->nbytes) &&
        (c == &k->wgsl || memcmp(*out, spirv, 4) == 0))
        return CML_OK;
    cml__heap_free(f->memory, *out);
    return BAD(f, "the code of kernel '%.*s' is damaged", TEXT_ARGS(text_of(f, k->label)));
}

/* Unpacks a kernel's code for a shader compiler; WGSL of an untrusted file is scanned. */
cml_status cml__load_code(file *f, const kernel_row *k, const code_row *c, void **code) {
    int is_checked = c == &k->wgsl && c->nbytes > 0 && !f->trusted;
    const char *problem = NULL;
    if (is_checked && c->nbytes > COOKED_MOST_WGSL)
        return BAD(f, "the WGSL of kernel '%.*s' is too long", TEXT_ARGS(text_of(f, k->label)));
    TRY(unpack_code(f, k, c, code));
    if (!is_checked) return CML_OK;
    cml_status status = cml__scan_wgsl(f->memory, *code, c->nbytes, &problem);
    if (status == CML_OK) return CML_OK;
    cml__heap_free(f->memory, *code);
    if (status == CML_ERROR_MEMORY)
        return cml__fail(f->error, status, "no memory to check a kernel of %u bytes", c->nbytes);
    return BAD(f, "the WGSL of kernel '%.*s' %s", TEXT_ARGS(text_of(f, k->label)), problem);
}

static int lower(char c) { return c >= 'A' && c <= 'Z' ? c + 32 : c; }

static int is_word(cml_text name, size_t at) {
    int c = at < name.length ? lower(name.data[at]) : ' ';
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
}

/* Returns 1 if the alternative of the pattern at `p` matches the name at `n`; \b is the beginning
 * or end of a word. */
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

/* Returns 1 if one of the pattern's alternatives, separated by `|`, is in the name. */
static int matches(cml_text pattern, cml_text name) {
    for (size_t p = 0; p <= pattern.length; p++)
        for (size_t n = 0; n <= name.length && (p == 0 || pattern.data[p - 1] == '|'); n++)
            if (is_at(pattern, p, name, n)) return 1;
    return 0;
}

/* Reads the first guess for a device of that name; general numbers if the file has none. */
cml_status cml__open_guess(file *f, cml_text name) {
    span in;
    f->guess = (device_row){{0, 0}, 2e7, 4e6, 0.004, 0, 0};
    TRY(cml__find_section(f, "guess", 0, SECTION_OPTIONAL, &in));
    if (in.data == NULL) return CML_OK;
    const guess_head *head = (const void *)in.data;
    if (in.size < sizeof *head || head->devices > COOKED_MOST_DEVICES ||
        head->factors > COOKED_MOST_FACTORS ||
        in.size != sizeof *head + sizeof(device_row) * (uint64_t)head->devices +
                       sizeof(factor_row) * (uint64_t)head->factors)
        return BAD(f, "its first guesses are damaged");
    const device_row *devices = (const void *)(head + 1);
    const factor_row *factors = (const void *)(devices + head->devices);
    for (uint32_t i = 0; i < head->factors; i++)
        if (!cml__is_text(f, factors[i].kernel) || !is_rate(factors[i].times))
            return BAD(f, "factor %u is damaged", i);
    for (uint32_t i = head->devices; i-- > 0;) { /* backwards: the first match wins */
        const device_row *one = devices + i;
        if (!cml__is_text(f, one->pattern) ||
            !is_inside(one->first_factor, one->factors, head->factors) ||
            !is_rate(one->flops_per_ms) || !is_rate(one->bytes_per_ms) ||
            !is_amount(one->launch_ms))
            return BAD(f, "first guess %u is damaged", i);
        if (!matches(text_of(f, one->pattern), name)) continue;
        f->guess = *one;
        f->factors = factors + one->first_factor;
    }
    return CML_OK;
}
