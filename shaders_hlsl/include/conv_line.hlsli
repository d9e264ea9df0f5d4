// Shared by conv_row_tile.hlsl, conv_phases.hlsl and conv_plain.hlsl: a thread computes COLUMNS
// neighbouring results of a line, whose windows cover SPAN inputs of each line of inputs. Each kernel
// defines cml_add_window, which adds the products with the inputs under the windows.
#ifndef CML_CONV_LINE
#define CML_CONV_LINE

// the arithmetic type of an input, and that of a choice between two
#ifndef INPUT
#define INPUT NUMBER4
#define CHOICE bool4
#endif

struct Run {
    uint image;
    int3 at; // of the first result, in steps of `up`
    bool inside;
};

static uint cml_offset[SPAN];
static bool cml_inside[SPAN];

Run cml_run(uint index) {
    int3 steps = int3(steps3(0), steps3(1), steps3(2));
    uint runs = (uint(steps.z) + STEPS - 1) / STEPS;
    Run p;
    uint last = batch * cml_volume(steps.x, steps.y, runs);
    p.inside = index < last;
    index = min(index, last - 1);
    uint line = cml_divide_rest(index, runs);
    uint plane = cml_divide_rest(line, uint(steps.y));
    p.image = cml_divide_rest(plane, uint(steps.x));
    p.at = int3(int(plane), int(line), int(index) * STEPS);
    return p;
}

// Returns the start of a line of inputs in the first block; `first` is the leftmost input.
void cml_find_inputs(int sz, int sy, int first, uint base) {
    int line = (sz * x_size(1) + sy) * x_size(2);
    {CML_UNROLL(int, i, SPAN) {
        int sx = cml_border(first + i, x_size(2));
        cml_inside[i] = min(min(sz, sy), sx) >= 0;
        cml_offset[i] = base + select(cml_inside[i], uint(line + sx), 0u);
    }}
}

// Returns the input at position i of the span; zero in the border.
INPUT cml_input(int i, uint offset) {
    INPUT value = INPUT(LOADED(T0[cml_offset[i] + offset]));
    return select(CHOICE(cml_inside[i]), value, INPUT(0));
}

void cml_store_run(Run p, uint row_block, int3 phase) {
    uint volume = cml_volume(y_size(0), y_size(1), y_size(2));
    int3 at = p.at * int3(up(0), up(1), up(2)) + phase;
    bool inside = p.inside && at.x < y_size(0) && at.y < y_size(1);
    uint line = (uint(at.x) * y_size(1) + uint(at.y)) * y_size(2);
    {CML_UNROLL(int, o, VECTORS) {
        uint number = row_block * VECTORS + o;
        if (4 * number < out_c) {
            Block block = cml_block(number);
            {CML_UNROLL(int, j, COLUMNS) {
                int x = at.z + j / PHASES * up(2) + j % PHASES;
                if (inside && x < y_size(2)) {
                    cml_store(cml_result(o, j), block, p.image, line + uint(x), volume);
                }
            }}
        }
    }}
}

CML_MAIN
{
    CML_EACH_GROUP(group)
    Part part = cml_part(group);
    Run p = cml_run(part.tile * GROUP + lane);
    cml_clear();
    cml_add_window(part, p, cml_volume(x_size(0), x_size(1), x_size(2)));
    cml_store_run(p, part.row_block, part.phase);
}

#endif
