/* Written by `python generate.py` from cml_engine/cooked/schema.py: the records
 * of a cooked file as they lie in it (docs/cooked.md). Numbers are little-endian, as
 * on all machines that have WebGPU. */
#ifndef CML_FORMAT_H
#define CML_FORMAT_H

#include <stdint.h>

/* clang-format off */
enum {
    COOKED_FORMAT = 2,
    COOKED_MOST_SECTIONS = 256,
    COOKED_SECTION_ALIGNMENT = 64,
    COOKED_TABLE_ALIGNMENT = 8,
    COOKED_MOST_DIMENSIONS = 8,
    COOKED_MOST_TEXT = 4096,
    COOKED_MOST_PARAMS = 65536,
    COOKED_MOST_TENSORS = 64,
    COOKED_MOST_INPUTS = 64,
    COOKED_MOST_DEVICES = 64,
    COOKED_MOST_FACTORS = 4096,
    COOKED_MOST_SMALLER = 1040,
    COOKED_VALUE_ALIGNMENT = 16,
    COOKED_SOURCE_AXES = 4,
    COOKED_TRUSTED = 1,
    COOKED_SUBGROUPS = 2,
    COOKED_F16 = 4,
    COOKED_MOST_WGSL = 524288,
    COOKED_MOST_DEPTH = 64,
    COOKED_MOST_PENDING = 512,
    COOKED_MOST_NAMES = 512,
    COOKED_MOST_ELEMENTS = 4096,
    COOKED_MOST_EXPANDED = 1048576,
};
#define COOKED_MOST_BYTES 281474976710656ull
#define COOKED_MOST_AMOUNT 1e+300
#define COOKED_SINGLE_SECTIONS {"strings", "kernels", "code", "values", "guess", "golden", "meta", "graph"}
#define COOKED_DEFAULT_LIMITS {67108864ull, 2147483648ull, 4096, 16384}
#define COOKED_HAS_SIZE(row, bytes) typedef char row##_has_padding[sizeof(row) == (bytes) ? 1 : -1]

typedef struct text_row {
    uint32_t offset; /* offset in `strings` */
    uint32_t length; /* bytes, at most 4096 */
} text_row;
COOKED_HAS_SIZE(text_row, 8);

typedef struct table_row {
    uint32_t count; /* number of rows */
    uint32_t offset; /* offset in the plan, a multiple of 8 */
} table_row;
COOKED_HAS_SIZE(table_row, 8);

typedef struct code_row {
    uint64_t offset; /* offset in `code` */
    uint32_t packed; /* compressed bytes, 0 where there is none */
    uint32_t nbytes; /* bytes when it is unpacked, at most 1040 times as many */
} code_row;
COOKED_HAS_SIZE(code_row, 16);

typedef struct totals_row {
    uint64_t code_bytes; /* bytes of all kernels' code, unpacked */
    uint64_t device_bytes; /* bytes of the largest plan's buffers: arena, weights, its own and parameters */
    uint32_t kernels; /* number of kernels */
    uint32_t steps; /* steps of the plan that has most */
} totals_row;
COOKED_HAS_SIZE(totals_row, 24);

typedef struct file_header {
    uint8_t magic[8]; /* magic: `89 43 4D 4C 0D 0A 1A 0A` */
    uint32_t format; /* format, 2 */
    uint32_t sections; /* number of sections, at most 256 */
    uint64_t nbytes; /* bytes of the whole file */
    uint8_t table_digest[32]; /* SHA-256 of the section table */
    totals_row totals; /* totals of all sections */
    uint8_t reserved_80[16];
} file_header;
COOKED_HAS_SIZE(file_header, 96);

typedef struct section_row {
    uint8_t tag[8]; /* tag */
    uint64_t offset; /* offset in the file, a multiple of 64 */
    uint64_t nbytes; /* bytes */
    uint32_t number; /* number among the sections of that tag, from 0 */
    uint8_t reserved_28[4];
    uint8_t digest[32]; /* SHA-256 of the section's bytes */
} section_row;
COOKED_HAS_SIZE(section_row, 64);

typedef struct kernels_head {
    uint32_t count; /* number of kernels */
    uint8_t reserved_4[4];
} kernels_head;
COOKED_HAS_SIZE(kernels_head, 8);

typedef struct kernel_row {
    uint8_t digest[32]; /* digest of everything that goes into the kernel */
    text_row label; /* label, for messages and tools */
    uint32_t params_bytes; /* bytes of the parameter block, a multiple of 16, from 16 to 65536 */
    uint32_t tensors; /* number of tensors bound, from 1 to 64 */
    uint32_t flags; /* flags: 1 trusted (may run without run-time checks), 2 needs subgroups, 4 needs `shader-f16` */
    uint8_t reserved_52[4];
    code_row spirv; /* SPIR-V, a multiple of 4 bytes when it is unpacked */
    code_row wgsl; /* WGSL */
    uint8_t reserved_88[8];
} kernel_row;
COOKED_HAS_SIZE(kernel_row, 96);

typedef struct needs_row {
    uint32_t storage_alignment; /* `minStorageBufferOffsetAlignment` of the device at most */
    uint32_t uniform_alignment; /* `minUniformBufferOffsetAlignment` of the device at most */
    uint64_t binding_bytes; /* `maxStorageBufferBindingSize` at least */
    uint64_t buffer_bytes; /* `maxBufferSize` at least */
    uint32_t threads; /* `maxComputeInvocationsPerWorkgroup` at least */
    uint32_t shared_bytes; /* `maxComputeWorkgroupStorageSize` at least */
    uint32_t bindings; /* `maxStorageBuffersPerShaderStage` at least */
    uint32_t lanes; /* lanes of a subgroup at least, 0 where none are used */
    uint32_t software; /* 1: planned for a driver that runs shaders on the CPU */
    uint8_t reserved_44[4];
} needs_row;
COOKED_HAS_SIZE(needs_row, 48);

typedef struct plan_head {
    text_row profile; /* the profile: `portable`, `discrete`, `software`, ... */
    uint8_t reserved_8[8];
    uint64_t spaces[3]; /* bytes of the arena, of the weights, of its own buffer */
    needs_row needs; /* what the plan needs of a device */
    double flops; /* FLOPs of a whole run */
    double nbytes; /* bytes read and written by a whole run */
    uint64_t gas; /* [gas](integer.md) of the model */
    table_row steps; /* steps */
    table_row bindings; /* bindings */
    table_row inputs; /* inputs */
    table_row outputs; /* outputs */
    table_row updates; /* updates */
    table_row params; /* parameters, whose rows are bytes */
    table_row constants; /* constants */
    uint8_t reserved_168[24];
} plan_head;
COOKED_HAS_SIZE(plan_head, 192);

typedef struct plan_step_row {
    uint32_t kernel; /* kernel */
    uint32_t groups; /* workgroups, at least 1 */
    uint32_t first_binding; /* its first binding, behind the last of the step before */
    uint32_t bindings; /* number of bindings, as many as the kernel has tensors */
    uint32_t writes; /* how many of the last bindings it writes */
    uint32_t params_offset; /* its parameters: offset in the parameters */
    uint32_t params_bytes; /* their bytes, as the kernel says */
    uint32_t line; /* line in the model's file, 0 where it is not known */
    text_row op; /* operator */
    text_row title; /* title, for messages and tables */
    text_row cost_key; /* cost key: equal keys cost the same per workgroup */
    text_row file; /* the model's file */
    double flops; /* FLOPs per workgroup */
    double nbytes; /* bytes per workgroup */
    uint64_t gas; /* operations of the step, rounded */
    uint8_t reserved_88[8];
} plan_step_row;
COOKED_HAS_SIZE(plan_step_row, 96);

typedef struct binding_row {
    uint32_t space; /* space: 0 arena, 1 weights, 2 own */
    uint8_t reserved_4[4];
    uint64_t offset; /* offset, a multiple of the plan's storage alignment */
    uint64_t nbytes; /* bytes, a multiple of 4 and at least 4 */
} binding_row;
COOKED_HAS_SIZE(binding_row, 24);

typedef struct update_row {
    binding_row source; /* from */
    binding_row target; /* to, in another space */
} update_row;
COOKED_HAS_SIZE(update_row, 48);

typedef struct tensor_row {
    text_row name; /* name */
    uint32_t type; /* type: 0 `scalar` (float32), 1 `integer` (int32), 2 `logical` (u32, 0 or 1) */
    uint32_t layout; /* layout: 0 plain (row-major), 1 `c4`, 2 `c4h` (`cml_engine/ir/layout.py`) */
    uint32_t rank; /* rank, at most 8 */
    uint32_t extents[8]; /* extents, 0 behind the rank */
    uint32_t space; /* space */
    uint64_t offset; /* offset */
    uint64_t nbytes; /* bytes, 0 where the tensor has no elements */
    uint8_t reserved_72[8];
} tensor_row;
COOKED_HAS_SIZE(tensor_row, 80);

typedef struct dimension_row {
    uint32_t extent; /* extent */
    uint32_t axis; /* axis of the source */
    uint32_t step; /* step */
} dimension_row;
COOKED_HAS_SIZE(dimension_row, 12);

typedef struct constant_row {
    uint32_t space; /* space: 1 weights, 2 own */
    uint32_t stored; /* how its source is stored: bits of 0 one, 1 two, 2 four bytes; 3 int8, 4 uint8, 5 int16, 6 uint16 */
    uint32_t becomes; /* what a stored number becomes: 0 bits stay as they are, 1 float32, 2 int32, 3 binary16 after the matrix */
    uint32_t rank; /* number of dimensions, from 1 to 8 */
    uint64_t offset; /* offset in the buffer, a multiple of 4 */
    uint64_t nbytes; /* bytes: those of its elements, up to a multiple of 4 with zeros */
    uint64_t source; /* source: offset in `values`, a multiple of 16 */
    uint64_t matrix; /* matrix: offset in `values`, a multiple of 16; all ones where there is none */
    uint32_t extents[4]; /* extents of the source, row-major */
    dimension_row dims[8]; /* dimensions: extent, axis of the source, step; 0 behind the last */
} constant_row;
COOKED_HAS_SIZE(constant_row, 160);

typedef struct guess_head {
    uint32_t devices; /* number of devices, at most 64 */
    uint32_t factors; /* number of factors, at most 4096 */
} guess_head;
COOKED_HAS_SIZE(guess_head, 8);

typedef struct device_row {
    text_row pattern; /* pattern */
    double flops_per_ms; /* FLOPs per ms */
    double bytes_per_ms; /* bytes per ms */
    double launch_ms; /* ms per dispatch */
    uint32_t first_factor; /* its first factor */
    uint32_t factors; /* number of factors */
} device_row;
COOKED_HAS_SIZE(device_row, 40);

typedef struct factor_row {
    text_row kernel; /* the second word of a cost key, or that up to its last `-` */
    double times; /* how many times the work takes that the device's numbers say */
} factor_row;
COOKED_HAS_SIZE(factor_row, 16);

typedef struct golden_head {
    uint32_t tensors; /* number of tensors */
    float tolerance; /* tolerance */
} golden_head;
COOKED_HAS_SIZE(golden_head, 8);

typedef struct golden_row {
    text_row name; /* name */
    uint32_t role; /* role: 0 input, 1 output; all inputs, then all outputs, in the order of the plans */
    uint32_t type; /* type */
    uint32_t rank; /* rank */
    uint32_t extents[8]; /* extents */
    uint8_t reserved_52[4];
    uint64_t offset; /* offset in the section */
} golden_row;
COOKED_HAS_SIZE(golden_row, 64);
/* clang-format on */
#endif
