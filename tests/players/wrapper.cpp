// Uses cml.hpp as a C++ host does: `wrapper COUNTER.cml`, with the network of
// tests/fixtures/cooked.py that counts its runs.
#include "cml.hpp"
#include "gpu.h"

#include <cstring>

#define WANT(what)                                                                                 \
    do {                                                                                           \
        if (!(what)) {                                                                             \
            std::fprintf(stderr, "line %d: wanted " #what "\n", __LINE__);                         \
            std::exit(1);                                                                          \
        }                                                                                          \
    } while (0)

static gpu g;

static void frame(cml::Scheduler &scheduler) {
    WGPUCommandEncoder encoder = wgpuDeviceCreateCommandEncoder(g.device, nullptr);
    scheduler.encode(encoder, 4.0);
    WGPUCommandBuffer commands = wgpuCommandEncoderFinish(encoder, nullptr);
    wgpuQueueSubmit(g.queue, 1, &commands);
    wgpuCommandBufferRelease(commands);
    wgpuCommandEncoderRelease(encoder);
    scheduler.end_frame();
}

static std::vector<float> read(cml::Scheduler &scheduler, cml::Job &job) {
    std::optional<std::vector<float>> found;
    while (!(found = job.read("y"))) frame(scheduler);
    return *found;
}

template <typename Call> static cml_status status_of(Call call) {
    try {
        call();
    } catch (const cml::Error &error) {
        WANT(std::strstr(error.what(), cml_status_name(error.status())) == error.what());
        return error.status();
    }
    return CML_OK;
}

int main(int argc, char **argv) {
    std::size_t size = 0;
    void *bytes = argc == 2 ? read_whole(argv[1], &size) : nullptr;
    cml_requirements needs{};
    if (bytes == nullptr || !gpu_find(&g)) return 3;
    cml_error unfit;
    WANT(cml_required_features(g.adapter, bytes, size, CML_TRUSTED, &needs, &unfit) == CML_OK);
    if (!gpu_create(&g, &needs)) return 3;
    cml_options options{};
    WANT(status_of([&] { cml::Scheduler nothing(options); }) == CML_ERROR_INPUT);
    cml_error error;
    cml_backend backend;
    WANT(gpu_fill(&g, &backend, &error) == CML_OK);
    options.backend = &backend;
    {
        cml::Scheduler scheduler(options);
        WANT(status_of([&] { scheduler.load(bytes, size - 1); }) == CML_ERROR_CORRUPT);
        cml::Net nothing;
        WANT(status_of([&] { nothing.build(1.0); }) == CML_ERROR_INPUT);
        WANT(status_of([&] { scheduler.submit(nothing, {}); }) == CML_ERROR_INPUT);
        WANT(nothing.inputs().empty());
        cml::Net net = scheduler.load(bytes, size, CML_TRUSTED);
        while (!net.build(10.0)) {}
        WANT(net.inputs().size() == 1 && cml::view(net.inputs()[0].name) == "x");
        WANT(net.outputs().size() == 2 && cml::view(net.info().profile) == needs.profile);

        std::vector<float> x{0, 1, 2, 3};
        cml::Job first = scheduler.submit(net, {cml::input("x", x)});
        cml::Job second = scheduler.submit(net, {cml::input("x", first, "y")});
        WANT(!first.tensor("y") && !first.is_over());
        WANT(read(scheduler, second)[3] == 3.0f + 5.0f + 6.0f);
        WANT(read(scheduler, first)[3] == 3.0f + 5.0f);
        WANT(first.is_done() && first.tensor("y")->bytes == 16);
        WANT(status_of([&] { first.read("z"); }) == CML_ERROR_INPUT);
        WANT(status_of([&] { scheduler.submit(net, {}); }) == CML_ERROR_INPUT);

        cml::Job moved = std::move(first);
        WANT(moved && !first && first.info().state == CML_STATE_GONE);
        cml_job handle = moved.handle();
        moved = scheduler.submit(net, {cml::input("x", x)}); // releases what it held
        WANT(cml_get_job_info(scheduler.get(), handle).state == CML_STATE_GONE);
        handle = moved.handle();
        moved.release(); // cancels what has not ended
        WANT(cml_get_job_info(scheduler.get(), handle).state == CML_STATE_GONE);
        WANT(scheduler.counts().pipelines > 0);
    }
    gpu_close(&g);
    std::free(bytes);
    std::printf("as wanted\n");
    return g.errors != 0;
}
