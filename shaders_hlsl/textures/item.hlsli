// Shared by the kernels between textures and tensors: the parameters (Params in
// cml_engine/gpu/textures/pipelines.py; each kernel states their meaning), and the entry point, which
// calls the kernel's `cml_item` for each item. Workgroups may run in any order and in any slices.
#ifndef CML_ITEM
#define CML_ITEM

[[vk::binding(0, 0)]] cbuffer Parameters {
    uint4 slice; // first workgroup, end of the workgroups, workgroups per row, items
    uint4 sizes;
    uint4 strides;
    uint4 picked;
    float4 scale;
    float4 shift;
    uint4 how;
};

[shader("compute")]
[numthreads(64, 1, 1)]
void main(uint3 workgroup : SV_GroupID, uint thread : SV_GroupIndex) {
    uint group = slice.x + workgroup.x + workgroup.y * slice.z;
    uint item = 64 * group + thread;
    if (group < slice.y && item < slice.w) { cml_item(item); }
}

#endif
