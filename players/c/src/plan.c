/* Opens the plans of a cooked file, and checks a whole file. */
#include "internal.h"

#define EACH(f, what, count, good) /* refuses the file if a row `i` of a table is not `good` */    \
    for (uint32_t i = 0; i < (count); i++)                                                         \
        if (!(good)) return BAD(f, what " %u is damaged", i)

static int is_alignment(uint32_t n) { return n >= 4 && n <= 4096 && (n & (n - 1)) == 0; }

/* Returns a table of the section; NULL if it does not lie inside, behind the head. */
static const void *rows_of(span in, table_row t, uint64_t size) {
    int is_there = t.offset >= sizeof(plan_head) && t.offset % COOKED_TABLE_ALIGNMENT == 0 &&
                   is_inside(t.offset, size * t.count, in.size);
    return is_there ? in.data + t.offset : NULL;
}

static int is_binding(const plan *p, binding_row b, uint32_t alignment) {
    uint64_t size = b.space < SPACES ? p->row->spaces[b.space] : 0;
    return ALL_ZERO(b.reserved_4) && b.offset % alignment == 0 && b.nbytes % 4 == 0 &&
           b.nbytes >= 4 && is_inside(b.offset, b.nbytes, size);
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
        if (extent > 0 && to->bytes > COOKED_MOST_BYTES / extent) return 0;
        to->bytes *= extent;
    }
    return 1;
}

/* Checks that no two inputs, or outputs, have the same name. */
static cml_status check_names(file *f, const plan *p, const tensor_list *all) {
    cml_text *names = cml__heap_alloc(f->memory, all->count, sizeof *names);
    if (names == NULL) return NO_MEMORY(f->error, "its tensors");
    for (uint32_t i = 0; i < all->count; i++) names[i] = all->items[i].shape.name;
    qsort(names, all->count, sizeof *names, compare_texts);
    for (uint32_t i = 1; i < all->count; i++)
        if (is_same_text(names[i - 1], names[i]))
            return BAD(f, "the plan '%.*s' has '%.*s' twice", TEXT_ARGS(p->profile),
                       TEXT_ARGS(names[i]));
    cml__heap_free(f->memory, names);
    return CML_OK;
}

static cml_status open_places(file *f, const plan *p, span in, table_row table, tensor_list *to) {
    const tensor_row *row = rows_of(in, table, sizeof *row);
    if (row == NULL) return BAD(f, "a table of '%.*s' lies outside of it", TEXT_ARGS(p->profile));
    to->items = cml__heap_alloc(f->memory, table.count, sizeof *to->items);
    if (to->items == NULL) return NO_MEMORY(f->error, "its tensors");
    for (; to->count < table.count; to->count++, row++) {
        tensor *one = to->items + to->count;
        one->at = (binding_row){.space = row->space, .offset = row->offset, .nbytes = row->nbytes};
        one->packed_at = to->bytes;
        if (!shape_of(f, row->name, row->type, row->layout, row->rank, row->extents, &one->shape) ||
            !ALL_ZERO(row->reserved_72) || row->nbytes != one->shape.bytes ||
            row->space >= SPACES || row->offset % p->row->needs.storage_alignment != 0 ||
            !is_inside(row->offset, (row->nbytes + 15) / 16 * 16, p->row->spaces[row->space]))
            return BAD(f, "input or output %u of '%.*s' is damaged", to->count,
                       TEXT_ARGS(p->profile));
        to->bytes += (row->nbytes + 255) / 256 * 256;
    }
    return check_names(f, p, to);
}

static int is_step(const file *f, const plan *p, const plan_step_row *s) {
    if (s->kernel >= f->kernel_count) return 0;
    const kernel_row *k = f->kernels + s->kernel;
    int has_lanes = (k->flags & COOKED_SUBGROUPS) == 0 || p->row->needs.lanes > 0;
    return s->groups > 0 && s->groups <= MAX_GROUPS_OF_STEP && s->writes > 0 &&
           is_inside(s->first_binding, s->bindings, p->row->bindings.count) &&
           s->bindings == k->tensors && s->writes <= s->bindings &&
           s->params_bytes == k->params_bytes && s->bindings <= p->row->needs.bindings &&
           has_lanes && ALL_ZERO(s->reserved_88) && is_amount(s->flops) && is_amount(s->nbytes) &&
           cml__is_text(f, s->op) && cml__is_text(f, s->title) && cml__is_text(f, s->cost_key) &&
           cml__is_text(f, s->file);
}

/* Checks that the steps' bindings lie one behind the other, and that each parameter block is that
 * of an earlier step, or begins behind the last one. */
static cml_status check_steps(file *f, const plan *p) {
    uint32_t count = p->row->params.count, unit = p->row->needs.uniform_alignment, first = 0;
    uint64_t end = 0;
    uint32_t *blocks = cml__heap_alloc(f->memory, (uint64_t)count / unit + 1, sizeof *blocks);
    if (blocks == NULL) return NO_MEMORY(f->error, "its steps");
    for (uint32_t i = 0; i < p->row->steps.count; i++) {
        const plan_step_row *s = p->steps + i;
        uint64_t next = (end + unit - 1) / unit * unit;
        if (!is_step(f, p, s) || s->first_binding != first || s->params_offset % unit != 0 ||
            !is_inside(s->params_offset, s->params_bytes, count))
            return BAD(f, "step, or the kernel, of step %u is damaged", i);
        if (s->params_offset == next && is_zero(p->params + end, next - end)) {
            blocks[next / unit] = s->params_bytes;
            end = next + s->params_bytes;
        }
        if (blocks[s->params_offset / unit] != s->params_bytes)
            return BAD(f, "the parameters of step %u are damaged", i);
        first += s->bindings;
    }
    cml__heap_free(f->memory, blocks);
    if (first != p->row->bindings.count || end != count)
        return BAD(f, "the plan '%.*s' has bindings or parameters that no step has",
                   TEXT_ARGS(p->profile));
    return CML_OK;
}

/* Opens the plan of that number. */
cml_status cml__open_plan(file *f, uint32_t number, plan *p) {
    span in;
    TRY(cml__find_section(f, "plan", number, SECTION_COPIED, &in));
    const plan_head *row = (const void *)in.data;
    if (in.size < sizeof *row || !cml__is_text(f, row->profile) ||
        !ALL_ZERO(row->needs.reserved_44) || row->needs.software > 1 ||
        !ALL_ZERO(row->reserved_8) || !ALL_ZERO(row->reserved_168) ||
        !is_alignment(row->needs.storage_alignment) ||
        !is_alignment(row->needs.uniform_alignment) || !is_amount(row->flops) ||
        !is_amount(row->nbytes) || row->inputs.count > COOKED_MOST_INPUTS)
        return BAD(f, "the header of plan %u is damaged", number);
    *p = (plan){.row = row, .profile = text_of(f, row->profile)};
    for (int i = 0; i < SPACES; i++)
        if (row->spaces[i] > row->needs.buffer_bytes || row->spaces[i] > COOKED_MOST_BYTES ||
            row->spaces[i] % 4 != 0)
            return BAD(f, "the buffers of plan %u are of no possible size", number);
    p->steps = rows_of(in, row->steps, sizeof *p->steps);
    p->bindings = rows_of(in, row->bindings, sizeof *p->bindings);
    p->updates = rows_of(in, row->updates, sizeof *p->updates);
    p->params = rows_of(in, row->params, 1);
    p->constants = rows_of(in, row->constants, sizeof *p->constants);
    if (!p->steps || !p->bindings || !p->updates || !p->params || !p->constants)
        return BAD(f, "tables of the plan '%.*s' lie outside of it", TEXT_ARGS(p->profile));
    EACH(f, "binding", row->bindings.count,
         is_binding(p, p->bindings[i], row->needs.storage_alignment) &&
             p->bindings[i].nbytes <= row->needs.binding_bytes);
    EACH(f, "update", row->updates.count,
         is_binding(p, p->updates[i].source, row->needs.storage_alignment) &&
             is_binding(p, p->updates[i].target, row->needs.storage_alignment) &&
             p->updates[i].source.space != p->updates[i].target.space &&
             p->updates[i].target.space != WEIGHTS);
    TRY(check_steps(f, p));
    EACH(f, "constant", row->constants.count, cml__is_constant(f, p, i));
    uint64_t bytes =
        row->spaces[ARENA] + row->spaces[WEIGHTS] + row->spaces[OWN] + row->params.count;
    if (bytes > f->most_bytes) f->most_bytes = bytes;
    if (row->steps.count > f->most_steps) f->most_steps = row->steps.count;
    if (bytes > f->totals.device_bytes || row->steps.count > f->totals.steps)
        return BAD(f, "the plan '%.*s' takes more than the header states", TEXT_ARGS(p->profile));
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
    return row->role == role && ALL_ZERO(row->reserved_52) &&
           shape_of(f, row->name, row->type, 0, row->rank, row->extents, &shape) &&
           same_tensor(&shape, &of->shape) && is_inside(row->offset, shape.bytes, size);
}

/* Checks the golden example: all inputs, then all outputs, in the order of the plans. */
static cml_status check_golden(file *f, const plan *p) {
    span in;
    TRY(cml__find_section(f, "golden", 0, SECTION_OPTIONAL, &in));
    if (in.data == NULL) return CML_OK;
    const golden_head *head = (const void *)in.data;
    const golden_row *rows = (const void *)(head + 1);
    uint32_t inputs = p->inputs.count;
    if (in.size < sizeof *head || head->tensors > (in.size - sizeof *head) / sizeof *rows ||
        head->tensors != inputs + (uint64_t)p->outputs.count)
        return BAD(f, "its example is damaged");
    if (!(head->tolerance >= 0) || is_infinite(head->tolerance))
        return BAD(f, "its example has no tolerance");
    for (uint32_t i = 0; i < head->tensors; i++) {
        uint32_t is_output = i >= inputs;
        const tensor *of = is_output ? &p->outputs.items[i - inputs] : &p->inputs.items[i];
        if (!is_golden(f, rows + i, is_output, of, in.size))
            return BAD(f, "tensor of its example %u is damaged", i);
    }
    return CML_OK;
}

/* Checks all of a file whose header has been read. */
cml_status cml__check_file(file *f, int with_code) {
    span unused;
    plan first, p;
    for (uint32_t i = 0; i < f->section_count; i++) /* sections of tools too */
        TRY(cml__find_section(f, (const char *)f->sections[i].tag, f->sections[i].number,
                              SECTION_REQUIRED, &unused));
    TRY(cml__open_kernels(f));
    for (uint32_t i = 0; with_code && i < f->kernel_count;
         i++) { /* SPIR-V is only for trusted files */
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
    TRY(cml__find_section(f, "meta", 0, SECTION_REQUIRED, &unused));
    TRY(check_golden(f, &first));
    return cml__open_guess(f, (cml_text){"", 0});
}

cml_status cml_check(const void *bytes, size_t size, const cml_limits *limits,
                     const cml_allocator *allocator, cml_error *error) {
    heap memory = {.allocator = allocator != NULL ? *allocator : (cml_allocator){NULL, NULL, NULL}};
    file f = cml__file_of(bytes, size, limits, 0);
    f.memory = &memory;
    f.error = error;
    if (error != NULL) memset(error, 0, sizeof *error);
    cml_status status = cml__open_file(&f);
    if (status == CML_OK) status = cml__check_file(&f, 1);
    cml__heap_free_all(memory);
    return status;
}
