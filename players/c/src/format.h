/* The records of a cooked file, as docs/cooked.md describes them. All numbers are little-endian, as
 * on every machine that has WebGPU, so that records are copied and not converted. */
#ifndef CML_FORMAT_H
#define CML_FORMAT_H

#include "cml.h"

enum { COOKED_FORMAT = 2 }; /* the format's number that this player reads */

typedef struct text_row {
    uint32_t at, length;
} text_row;

typedef struct table_row {
    uint32_t count, at;
} table_row;

typedef struct code_row { /* a kernel in one language */
    uint64_t at;
    uint32_t packed, bytes;
} code_row;

typedef struct binding {
    uint32_t space, zero;
    uint64_t at, bytes;
} binding;

typedef struct update {
    binding from, to;
} update;

typedef struct factor_row {
    text_row word;
    double factor;
} factor_row;

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

enum { KERNEL_TRUSTED = 1, KERNEL_SUBGROUPS = 2, KERNEL_HALF = 4 }; /* flags of a kernel */

typedef struct kernel_row {
    uint8_t digest[32];
    text_row label;
    uint32_t params, tensors, flags, zero;
    code_row spirv, wgsl;
    uint64_t zeros;
} kernel_row;

enum { ARENA, WEIGHTS, OWN, SPACES }; /* the buffers of a plan */

typedef struct plan_row {
    text_row profile;
    uint64_t reserved;
    uint64_t spaces[SPACES]; /* bytes of each buffer */
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
    text_row names[4]; /* operator, title, cost key, source file */
    double flops, bytes;
    uint64_t gas, zero;
} step_row;

typedef struct tensor_row {
    text_row name;
    uint32_t type, layout, rank, extents[8], space;
    uint64_t at, bytes, zero;
} tensor_row;

enum { AXES = 4, DIMS = 8, POINTS = 6 };
enum { AS_BITS, AS_FLOAT, AS_INTEGER }; /* what the stored numbers of a constant become */

typedef struct piece_row { /* a constant in a buffer, and how to make it from the stored numbers */
    uint32_t space, stored, becomes, rank;
    uint64_t at, bytes, source, matrix;
    uint32_t extents[AXES];
    struct {
        uint32_t extent, axis, step;
    } dims[DIMS];
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

/* Bounds of what a file may contain. */
enum { MAX_SECTIONS = 256, MAX_TEXT = 4096, MAX_DEVICES = 64, MAX_FACTORS = 4096, MAX_INPUTS = 64 };
#define MAX_GROUPS_OF_STEP (65535u * 65535u) /* what a dispatch of two dimensions can run */

#endif
