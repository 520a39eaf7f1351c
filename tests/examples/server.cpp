// A server: threads with a stream each share one context, which is sealed after the warm-up. From then on nothing compiles, and the
// counters say so. Every answer is compared with the CPU reference.
#include "gpu.hpp"

#include <array>
#include <atomic>
#include <memory>
#include <thread>

namespace {

constexpr unsigned kWorkers = 4, kRequests = 16;
constexpr std::int64_t kMostRows = 96;

constexpr std::array kProblems = {nqpp::Problem(2048), nqpp::Problem(4096).with(nqpp::Op::add_rmsnorm).with(nqpp::ScaleLayout::swizzled),
                                  nqpp::Problem::mxfp4(2048)};

// Of one worker.
struct Lane {
    Lane(const Device& device, unsigned number) : stream(device) {
        for (unsigned i = 0; i < kRequests; ++i) {
            const nqpp::Problem& problem = kProblems[i % kProblems.size()];
            const std::int64_t rows = 1 + (number * kRequests + i) * 37 % kMostRows;
            requests.push_back(std::make_unique<Norm>(device, problem, rows, 1000 * number + i));
        }
    }
    Stream stream;
    std::vector<std::unique_ptr<Norm>> requests;
};

int serve() {
    const Device device;
    std::vector<std::unique_ptr<Lane>> lanes;
    for (unsigned i = 0; i < kWorkers; ++i) lanes.push_back(std::make_unique<Lane>(device, i));

    // A compile after the warm-up would be worth an alarm.
    std::atomic<int> compiles{0};
    const auto on_compile = [&](const nq_compile_event&) { ++compiles; };
    auto context = nqpp::Context::create(nqpp::ContextOptions().on_compile(on_compile)).value();
    std::array<nqpp::Kernel, kProblems.size()> kernels;
    for (std::size_t i = 0; i < kProblems.size(); ++i) {
        kernels[i] = context.prepare(kProblems[i], nqpp::PrepareOptions(lanes[0]->stream.get())).value();
    }
    context.seal().value();
    const nq_counters warm = context.counters().value();
    const int compiled_in_warm_up = compiles;

    std::atomic<unsigned> right{0};
    const auto work = [&](Lane& lane) {
        device.make_current();
        for (unsigned i = 0; i < kRequests; ++i) {
            Norm& request = *lane.requests[i];
            request.upload(lane.stream);
            const nqpp::Status launched = kernels[i % kernels.size()].launch(request.tensors(), lane.stream.get());
            if (!launched) {
                std::fprintf(stderr, "%s\n", launched.error().message.c_str());
                return;
            }
            if (!request.matches_reference(lane.stream, 1)) return;
            ++right;
        }
    };
    std::vector<std::thread> workers;
    for (const auto& lane : lanes) {
        workers.emplace_back([&, lane = lane.get()] {
            try {
                work(*lane);
            } catch (const std::exception& error) {
                std::fprintf(stderr, "%s\n", error.what());
            }
        });
    }
    for (std::thread& worker : workers) worker.join();

    const nq_counters served = context.counters().value();
    const auto while_serving = served.compiles + served.failed_compiles - warm.compiles - warm.failed_compiles;
    std::printf("%u of %u requests have the bytes of the reference; %d compiles in the warm-up, %d while serving\n", right.load(),
                kWorkers * kRequests, compiled_in_warm_up, static_cast<int>(while_serving));
    return right == kWorkers * kRequests && while_serving == 0 && compiles == compiled_in_warm_up ? 0 : 1;
}

}  // namespace

int main() { return run_example(serve); }
