/* Opens the plans of a cooked file, and checks a whole file. */
#include "internal.h"

#define EACH(f, what, count, good) /* refuses the file if a row `i` of a table is not `good` */    \
    for (uint32_t i = 0; i < (count); i++)                                                         \
        if (!(good)) return BAD(f, what " %u is damaged", i)

static int is_alignment(uint32_t n) { return n >= 4 && n <= 4096 && (n & (n - 1)) == 0; }

/* Returns a table of the section; NULL if it does not lie inside. */
static const void *rows_of(span in, table_row t, uint64_t size) {
    return t.at % 8 == 0 && is_inside(t.at, size * t.count, in.size) ? in.data + t.at : NULL;
}

static int is_binding(const plan *p, binding b, uint32_t alignment) {
    uint64_t size = b.space < SPACES ? p->row->spaces[b.space] : 0;
    return b.zero == 0 && b.at % alignment == 0 && b.bytes % 4 == 0 && b.bytes >= 4 &&
           is_inside(b.at, b.bytes, size);
}

/* Fills in a shape; returns 0 if there is no such tensor. */
static int shape_of(const file *f, text_row name, uint32_t type, uint32_t layout, uint32_t rank,
                    const uint32_t extents[8], cml_shape *to) {
    if (!cml__is_text(f, name) || type > CML_TYPE_LOGICAL || layout > CML_LAYOUT_C4H || rank > 8 ||
        !is_zero(extents + rank, 4 * (8 - rank)) || (layout != CML_LAYOUT_PLAIN && rank < 3) ||
        (layout == CML_LAYOUT_C4H && type != CML_TYPE_SCALAR))
        return 0;
    *to = (cml_shape){text_of(f, name), (cml_type)type, (cml_layout)layout, rank, {0}, 1, 4};
    if (layout == CML_LAYOUT_C4H) to->bytes = 2;
    for (uint32_t i = 0; i < rank; i++) {
        uint64_t extent = to->extents[i] = extents[i];
        to->elements *= extent;
        if (layout != CML_LAYOUT_PLAIN && i == 1) extent = (extent + 3) / 4 * 4;
        if (extent > 0 && to->bytes > ((uint64_t)1 << 48) / extent) return 0;
        to->bytes *= extent;
    }
    return 1;
}

static cml_status open_places(file *f, const plan *p, span in, table_row table, tensor_list *to) {
    const tensor_row *row = rows_of(in, table, sizeof *row);
    if (row == NULL) return BAD(f, "a table of '%.*s' lies outside of it", TEXT(p->profile));
    to->items = cml__heap_alloc(f->memory, table.count, sizeof *to->items);
    if (to->items == NULL)
        return cml__fail(f->error, CML_ERROR_MEMORY, "no memory for its tensors");
    for (; to->count < table.count; to->count++, row++) {
        tensor *one = to->items + to->count;
        *one = (tensor){.at = {row->space, 0, row->at, row->bytes}, .packed_at = to->bytes};
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
    return s->groups > 0 && s->groups <= MAX_GROUPS_OF_STEP && s->written > 0 &&
           is_inside(s->first_binding, s->bindings, p->row->bindings.count) &&
           s->bindings == k->tensors && s->written <= s->bindings && s->params == k->params &&
           s->bindings <= p->row->storage_buffers && has_lanes && s->zero == 0 &&
           is_amount(s->flops) && is_amount(s->bytes) && cml__is_text(f, s->names[0]) &&
           cml__is_text(f, s->names[1]) && cml__is_text(f, s->names[2]) &&
           cml__is_text(f, s->names[3]);
}

/* Checks that the steps' bindings lie one behind the other, and that each parameter block is that
 * of an earlier step, or begins behind the last one. */
static cml_status check_steps(file *f, const plan *p) {
    uint32_t count = p->row->params.count, unit = p->row->uniform_alignment, first = 0;
    uint64_t end = 0;
    uint32_t *blocks = cml__heap_alloc(f->memory, (uint64_t)count / unit + 1, sizeof *blocks);
    if (blocks == NULL) return cml__fail(f->error, CML_ERROR_MEMORY, "no memory for its steps");
    for (uint32_t i = 0; i < p->row->steps.count; i++) {
        const step_row *s = p->steps + i;
        uint64_t next = (end + unit - 1) / unit * unit;
        if (!is_step(f, p, s) || s->first_binding != first || s->params_at % unit != 0 ||
            !is_inside(s->params_at, s->params, count))
            return BAD(f, "step, or the kernel, of step %u is damaged", i);
        if (s->params_at == next && is_zero(p->params + end, next - end)) {
            blocks[next / unit] = s->params;
            end = next + s->params;
        }
        if (blocks[s->params_at / unit] != s->params)
            return BAD(f, "the parameters of step %u are damaged", i);
        first += s->bindings;
    }
    cml__heap_free(f->memory, blocks);
    if (first != p->row->bindings.count || end != count)
        return BAD(f, "the plan '%.*s' has bindings or parameters that no step has",
                   TEXT(p->profile));
    return CML_OK;
}

/* Opens the plan of that number. */
cml_status cml__open_plan(file *f, uint32_t number, plan *p) {
    span in;
    TRY(cml__find_section(f, "plan", number, COPIED, &in));
    const plan_row *row = (const void *)in.data;
    if (in.size < sizeof *row || !cml__is_text(f, row->profile) || row->zero != 0 ||
        row->software > 1 || row->reserved != 0 || !is_zero(row->zeros, sizeof row->zeros) ||
        !is_alignment(row->storage_alignment) || !is_alignment(row->uniform_alignment) ||
        !is_amount(row->flops) || !is_amount(row->bytes) || row->inputs.count > MAX_INPUTS)
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
    EACH(f, "constant", row->pieces.count, cml__is_piece(f, p, i));
    uint64_t bytes =
        row->spaces[ARENA] + row->spaces[WEIGHTS] + row->spaces[OWN] + row->params.count;
    if (bytes > f->most_bytes) f->most_bytes = bytes;
    if (row->steps.count > f->most_steps) f->most_steps = row->steps.count;
    if (bytes > f->totals.device_bytes || row->steps.count > f->totals.steps)
        return BAD(f, "the plan '%.*s' takes more than the header states", TEXT(p->profile));
    TRY(open_places(f, p, in, row->inputs, &p->inputs));
    return open_places(f, p, in, row->outputs, &p->outputs);
}

/* Returns 1 if both are the same input or output; their layouts may differ. */
static int same_tensor(const cml_shape *a, const cml_shape *b) {
    return is_same_text(a->name, b->name) && a->type == b->type && a->rank == b->rank &&
           memcmp(a->extents, b->extents, sizeof a->extents) == 0;
}

static int same_tensors(const tensor_list *a, const tensor_list *b) {
    if (a->count != b->count) return 0;
    for (uint32_t i = 0; i < a->count; i++)
        if (!same_tensor(&a->items[i].shape, &b->items[i].shape)) return 0;
    return 1;
}

/* Returns 1 if a row of the golden example is that tensor of the network. */
static int is_golden(const file *f, const golden_row *row, uint32_t role, const tensor *of,
                     uint64_t size) {
    cml_shape shape;
    return row->role == role && row->zero == 0 &&
           shape_of(f, row->name, row->type, 0, row->rank, row->extents, &shape) &&
           same_tensor(&shape, &of->shape) && is_inside(row->at, shape.bytes, size);
}

/* Checks the golden example: all inputs, then all outputs, in the order of the plans. */
static cml_status check_golden(file *f, const plan *p) {
    span in;
    float tolerance;
    TRY(cml__find_section(f, "golden", 0, OPTIONAL, &in));
    if (in.data == NULL) return CML_OK;
    const uint32_t *count = (const void *)in.data; /* and a float: the tolerance */
    const golden_row *rows = (const void *)(count + 2);
    uint32_t inputs = p->inputs.count;
    if (in.size < 8 || *count > (in.size - 8) / sizeof *rows ||
        *count != inputs + (uint64_t)p->outputs.count)
        return BAD(f, "its example is damaged");
    memcpy(&tolerance, count + 1, sizeof tolerance);
    if (!(tolerance >= 0) || isinf(tolerance)) return BAD(f, "its example has no tolerance");
    EACH(f, "tensor of its example", *count,
         is_golden(f, rows + i, i >= inputs,
                   i < inputs ? p->inputs.items + i : p->outputs.items + (i - inputs), in.size));
    return CML_OK;
}

static cml_status check_all(file *f) {
    span unused;
    plan first, p;
    TRY(cml__open_file(f));
    for (uint32_t i = 0; i < f->section_count; i++) /* sections of tools too */
        TRY(cml__find_section(f, f->sections[i].tag, f->sections[i].number, REQUIRED, &unused));
    TRY(cml__open_kernels(f));
    for (uint32_t i = 0; i < f->kernel_count; i++) { /* SPIR-V is only for trusted files */
        void *code = NULL;
        TRY(cml__load_code(f, f->kernels + i, &f->kernels[i].wgsl, &code));
        cml__heap_free(f->memory, code);
    }
    if (f->plan_count == 0) return BAD(f, "it has no plan");
    TRY(cml__open_plan(f, 0, &first));
    for (uint32_t i = 1; i < f->plan_count; i++) {
        TRY(cml__open_plan(f, i, &p));
        if (!same_tensors(&p.inputs, &first.inputs) || !same_tensors(&p.outputs, &first.outputs))
            return BAD(f, "its plans have other inputs or outputs than each other");
    }
    if (f->most_bytes != f->totals.device_bytes || f->most_steps != f->totals.steps)
        return BAD(f, "its header states other totals than its plans have");
    TRY(cml__find_section(f, "meta", 0, REQUIRED, &unused));
    TRY(check_golden(f, &first));
    return cml__open_guess(f, (cml_text){"", 0});
}

cml_status cml_check(const void *bytes, size_t size, const cml_limits *limits,
                     const cml_allocator *allocator, cml_error *error) {
    heap memory = {.allocator = allocator != NULL ? *allocator : (cml_allocator){NULL, NULL, NULL}};
    file f = {.whole = {bytes, bytes ? size : 0},
              .memory = &memory,
              .error = error,
              .limits = cml__limits_of(limits, 0)};
    if (error != NULL) memset(error, 0, sizeof *error);
    cml_status status = check_all(&f);
    cml__heap_free_all(memory);
    return status;
}
