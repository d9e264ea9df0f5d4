// The C player for C++17: handles that release themselves, and exceptions for errors.
// Everything that frames call is noexcept. cml.h documents what the functions do.
#ifndef CML_HPP
#define CML_HPP

#include "cml.h"

#include <cstddef>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace cml {

/// An error of the player; what() has the status's name and the text.
class Error : public std::runtime_error {
  public:
    explicit Error(const cml_error &error)
        : std::runtime_error(std::string(cml_status_name(error.status)) + ": " + error.text),
          status_(error.status) {}

    cml_status status() const noexcept { return status_; }

  private:
    cml_status status_;
};

inline std::string_view view(cml_text text) noexcept { return {text.data, text.length}; }

namespace detail {

/// Throws an Error for anything but CML_OK and CML_PENDING.
inline cml_status check(cml_status status, cml_error &error) {
    if (status == CML_OK || status == CML_PENDING) return status;
    error.status = status;
    throw Error(error);
}

inline cml_status check(cml_status status, const char *text) {
    cml_error error{};
    for (std::size_t i = 0; text[i] != 0 && i + 1 < sizeof error.text; i++) error.text[i] = text[i];
    return check(status, error);
}

struct Unload {
    cml_scheduler *scheduler = nullptr;
    void operator()(cml_net *net) const noexcept { cml_unload(scheduler, net); }
};

struct Destroy {
    void operator()(cml_scheduler *scheduler) const noexcept { cml_destroy(scheduler); }
};

} // namespace detail

/// A submitted job; its destructor releases it, which cancels a job that has not ended.
/// Must not outlive its scheduler.
class Job {
  public:
    Job() noexcept = default;
    Job(cml_scheduler *scheduler, cml_job handle) noexcept
        : scheduler_(scheduler), handle_(handle) {}
    Job(Job &&other) noexcept
        : scheduler_(other.scheduler_), handle_(std::exchange(other.handle_, 0)) {}
    Job &operator=(Job &&other) noexcept {
        if (this != &other) {
            release();
            scheduler_ = other.scheduler_;
            handle_ = std::exchange(other.handle_, 0);
        }
        return *this;
    }
    Job(const Job &) = delete;
    Job &operator=(const Job &) = delete;
    ~Job() { release(); }

    cml_job handle() const noexcept { return handle_; }
    explicit operator bool() const noexcept { return handle_ != 0; }

    cml_job_info info() const noexcept {
        if (handle_ == 0) return cml_job_info{CML_STATE_GONE, 0, 0.0, 0.0, ""};
        return cml_get_job_info(scheduler_, handle_);
    }
    bool is_done() const noexcept { return info().state == CML_STATE_DONE; }
    bool is_over() const noexcept {
        cml_state state = info().state;
        return state != CML_STATE_QUEUED && state != CML_STATE_RUNNING;
    }

    void cancel() noexcept {
        if (handle_ != 0) cml_cancel(scheduler_, handle_);
    }
    void pause(bool paused = true) noexcept {
        if (handle_ != 0) cml_pause(scheduler_, handle_, paused ? 1 : 0);
    }
    void release() noexcept {
        if (handle_ != 0) cml_release(scheduler_, std::exchange(handle_, 0));
    }

    /// An output on the device; nullopt until the job is done.
    std::optional<cml_tensor> tensor(const char *output) const {
        cml_tensor result{};
        cml_status status =
            handle_ != 0 ? cml_get_tensor(scheduler_, handle_, output, &result) : CML_ERROR_INPUT;
        if (status == CML_PENDING) return std::nullopt;
        detail::check(status, "the job is gone, cancelled or failed, or has no such output");
        return result;
    }

    /// An output on the host as floats or 32-bit integers; nullopt until it has arrived.
    template <typename Number = float> std::optional<std::vector<Number>> read(const char *output) {
        static_assert(sizeof(Number) == 4, "outputs have elements of 4 bytes");
        std::optional<cml_tensor> place = tensor(output);
        if (!place) return std::nullopt;
        std::vector<Number> data(static_cast<std::size_t>(place->shape.elements));
        cml_error error{};
        cml_status status = cml_read(scheduler_, handle_, output, data.data(),
                                     data.size() * sizeof(Number), &error);
        if (detail::check(status, error) == CML_PENDING) return std::nullopt;
        return data;
    }

  private:
    cml_scheduler *scheduler_ = nullptr;
    cml_job handle_ = 0;
};

/// A loaded network; its destructor unloads it. Must not outlive its scheduler.
class Net {
  public:
    Net() noexcept = default;
    Net(cml_scheduler *scheduler, cml_net *net) noexcept : net_(net, detail::Unload{scheduler}) {}

    cml_net *get() const noexcept { return net_.get(); }

    /// Builds for about `ms`; returns true once the network is ready.
    bool build(double ms) {
        cml_error error{};
        return detail::check(cml_build(net_.get(), ms, &error), error) == CML_OK;
    }
    std::vector<cml_shape> inputs() const { return shapes(cml_get_input_shape); }
    std::vector<cml_shape> outputs() const { return shapes(cml_get_output_shape); }
    cml_net_info info() const {
        cml_net_info info{};
        detail::check(cml_get_net_info(net_.get(), &info), "the network is unloaded");
        return info;
    }

  private:
    using GetShape = cml_status (*)(const cml_net *, uint32_t, cml_shape *);

    std::vector<cml_shape> shapes(GetShape get_shape) const {
        std::vector<cml_shape> shapes;
        cml_shape shape{};
        for (uint32_t i = 0; get_shape(net_.get(), i, &shape) == CML_OK; i++)
            shapes.push_back(shape);
        return shapes;
    }

    std::unique_ptr<cml_net, detail::Unload> net_;
};

/// An input of plain numbers of 4 bytes on the host, which submit() copies.
inline cml_input input(const char *name, const void *data, std::size_t bytes) noexcept {
    cml_input result{};
    result.name = name;
    result.data = data;
    result.bytes = bytes;
    return result;
}

template <typename Number>
cml_input input(const char *name, const std::vector<Number> &data) noexcept {
    static_assert(sizeof(Number) == 4, "inputs have elements of 4 bytes");
    return input(name, data.data(), data.size() * sizeof(Number));
}

/// An input in a buffer of the device, as a WGPUBuffer, which is copied when the job starts.
inline cml_input buffer_input(const char *name, void *buffer, uint64_t offset) noexcept {
    cml_input result{};
    result.name = name;
    result.buffer = buffer;
    result.offset = offset;
    return result;
}

/// An input that is another job's output.
inline cml_input input(const char *name, const Job &job, const char *output) noexcept {
    cml_input result{};
    result.name = name;
    result.job = job.handle();
    result.output = output;
    return result;
}

/// A scheduler; destroy networks and jobs before it.
class Scheduler {
  public:
    explicit Scheduler(const cml_options &options) {
        cml_error error{};
        cml_scheduler *created = nullptr;
        detail::check(cml_create(&options, &created, &error), error);
        scheduler_.reset(created);
    }

    cml_scheduler *get() const noexcept { return scheduler_.get(); }

    /// `bytes` must stay until Net::build has returned true.
    Net load(const void *bytes, std::size_t size, uint32_t flags = 0) {
        cml_error error{};
        cml_net *net = nullptr;
        detail::check(cml_load_cooked(get(), bytes, size, flags, &net, &error), error);
        return Net(get(), net);
    }

    Job submit(const Net &net, const std::vector<cml_input> &inputs,
               const cml_job_options &options = cml_job_options{}) {
        cml_error error{};
        cml_job job = 0;
        detail::check(
            cml_submit(get(), net.get(), inputs.data(), inputs.size(), &options, &job, &error),
            error);
        return Job(get(), job);
    }

    const cml_report &encode(void *commands, double budget_ms = CML_BUDGET) noexcept {
        return *cml_encode(get(), commands, budget_ms);
    }
    uint32_t end_frame() noexcept { return cml_end_frame(get()); }
    const cml_report *measured(uint32_t index) const noexcept {
        return cml_get_measured(get(), index);
    }
    void abandon_frame() noexcept { cml_abandon_frame(get()); }
    void device_lost() noexcept { cml_device_lost(get()); }
    cml_counts counts() const noexcept { return cml_get_counts(get()); }

  private:
    std::unique_ptr<cml_scheduler, detail::Destroy> scheduler_;
};

} // namespace cml
#endif
