// What the kernels between textures and tensors share: the parameters (Params in
// cml_engine/gpu/textures/kernels.py), of which each kernel says what they mean to it, and a thread for
// each item, whose own part is `cml_item`. Workgroups may come in any order and number, as those of
// every kernel.
#ifndef CML_ITEM
#define CML_ITEM

[[vk::binding(0, 0)]] cbuffer Parameters {
    uint4 slice; // first workgroup, the one behind the last, workgroups in a row, items
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
