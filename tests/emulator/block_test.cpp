// The emulator itself: it must notice what a GPU would silently get wrong.
#include "emulator/block.h"

#include "support/catch.h"

#include <bit>
#include <cmath>
#include <cstdint>

using nq::test::Divergence;
using nq::test::EmulatedBlock;

TEST_CASE("a shuffle exchanges values between the lanes of a warp") {
    EmulatedBlock block(64);
    std::vector<float> got(64);
    block.run(3, [&](const EmulatedBlock::View& view) {
        REQUIRE(view.index() == 3);
        got[view.thread()] = view.shuffle_xor(static_cast<float>(view.thread()), 5);
    });
    for (unsigned t = 0; t < 64; ++t) CHECK(got[t] == static_cast<float>(t ^ 5u));
}

TEST_CASE("shared memory starts as garbage and is seen by all threads after a barrier") {
    EmulatedBlock block(96);
    std::vector<float> got(96);
    block.run(0, [&](const EmulatedBlock::View& view) {
        float* shared = view.warp_sums();
        if (view.thread() == 0 && std::bit_cast<std::uint32_t>(shared[7]) != 0xa5a5a5a5u) throw std::runtime_error("not garbage");
        if (view.thread() % 32 == 0) shared[view.thread() / 32] = static_cast<float>(view.thread());
        view.barrier();
        got[view.thread()] = shared[2];
    });
    for (const float v : got) CHECK(v == 64.0f);
}

TEST_CASE("the blocks of a cluster run side by side, each with its own shared memory, and send each other sums") {
    EmulatedBlock cluster(32, {.blocks = 1, .parts = 2, .cluster = true});
    std::vector<float> got(64);
    const auto prepared = [](const EmulatedBlock::View& view) {
        if (view.thread() != 0) return;
        view.sums_arrival().init();
        view.sums_arrival().expect(2 * 4);
    };
    SECTION("what was sent is there once it is waited for") {
        cluster.run(0, [&](const EmulatedBlock::View& view) {
            prepared(view);
            view.cluster_arrive();
            view.cluster_wait();
            float* place = view.warp_sums() + view.part();
            if (view.thread() < 2) view.send(view.thread(), view.sums_arrival(), place, static_cast<float>(10 + view.part()));
            view.wait_until([&] { return view.sums_arrival().has_passed(0); });
            got[view.part() * 32 + view.thread()] = view.warp_sums()[0] * 100 + view.warp_sums()[1];
        });
        for (const float v : got) CHECK(v == 1011.0f);
    }
    SECTION("a block may not be sent to before all have begun") {
        CHECK_THROWS_AS(cluster.run(0, [&](const EmulatedBlock::View& view) {
            prepared(view);
            view.send(1 - view.part(), view.sums_arrival(), view.warp_sums(), 0.0f);
        }), Divergence);
    }
    SECTION("nor waited for by a thread that has not arrived") {
        CHECK_THROWS_AS(cluster.run(0, [](const EmulatedBlock::View& view) { view.cluster_wait(); }), Divergence);
    }
    SECTION("sums that nobody sends are waited for in vain") {
        CHECK_THROWS_AS(cluster.run(0, [&](const EmulatedBlock::View& view) {
            prepared(view);
            view.wait_until([&] { return view.sums_arrival().has_passed(0); });
        }), Divergence);
    }
}

TEST_CASE("earlier kernels end when a block waits for them, in each block anew") {
    EmulatedBlock block(64, {.blocks = 2});
    unsigned ended = 0;
    block.set_predecessors([&] { ++ended; });
    for (unsigned b = 0; b < 2; ++b) {
        block.run(b, [&](const EmulatedBlock::View& view) {
            if (ended != b) throw std::runtime_error("ended before");
            view.wait_for_predecessors();
            if (ended != b + 1) throw std::runtime_error("not ended, or twice");
        });
    }
    CHECK_THROWS_AS(block.run(0, [](const auto&) {}), Divergence);
}

TEST_CASE("divergent collectives are errors") {
    EmulatedBlock block(64);
    SECTION("threads of a warp at a shuffle and at a barrier") {
        CHECK_THROWS_AS(block.run(0, [](const auto& v) { v.thread() == 5 ? v.barrier() : void(v.shuffle_xor(0.0f, 1)); }), Divergence);
    }
    SECTION("different distances") {
        CHECK_THROWS_AS(block.run(0, [](const auto& v) { v.shuffle_xor(0.0f, v.thread() < 16 ? 1 : 2); }), Divergence);
    }
    SECTION("a thread that leaves early") {
        CHECK_THROWS_AS(block.run(0, [](const auto& v) { if (v.thread() != 9) v.shuffle_xor(0.0f, 1); }), Divergence);
    }
    SECTION("a warp that leaves before a barrier") {
        CHECK_THROWS_AS(block.run(0, [](const auto& v) { if (v.thread() < 32) v.barrier(); }), Divergence);
    }
    SECTION("a partner outside the warp") {
        CHECK_THROWS_AS(block.run(0, [](const auto& v) { v.shuffle_xor(0.0f, 32); }), Divergence);
    }
}
