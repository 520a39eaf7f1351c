// The reference against vectors made by an independent implementation: every byte of every output.
#include "support/golden.h"

#include "support/catch.h"

using namespace nq;
using namespace nq::test;

TEST_CASE("all golden vectors are there") { CHECK(golden_names().size() == 34); }

TEST_CASE("the reference reproduces the golden vectors") {
    const std::string name = GENERATE(from_range(golden_names()));
    const unsigned threads = GENERATE(1u, 3u);
    CAPTURE(name, threads);
    const GoldenCase golden = load_golden(name);
    const Outputs out = run_reference(golden.problem, golden.inputs, threads);
    CHECK(out.fp4 == golden.expected.fp4);
    CHECK(out.scales == golden.expected.scales);
    CHECK(out.residual == golden.expected.residual);
    CHECK(out.y_out == golden.expected.y_out);
    CHECK(same_floats(out.sum_of_squares, golden.expected.sum_of_squares));
    CHECK(same_floats(out.rstd, golden.expected.rstd));
}
