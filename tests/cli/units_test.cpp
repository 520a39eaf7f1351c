// Sizes, ages and times, and the names of entry files.
#include "units.h"
#include "cache_view.h"
#include "support/catch.h"

using namespace nq::cli;

TEST_CASE("ages are a number and a unit") {
    CHECK(*parse_age("--x", "0s") == 0);
    CHECK(*parse_age("--x", "90s") == 90);
    CHECK(*parse_age("--x", "30m") == 1800);
    CHECK(*parse_age("--x", "12h") == 43200);
    CHECK(*parse_age("--x", "1000000d") == 86400000000);
    for (const char* bad : {"", "7", "d", "7 d", "7dd", "-7d", "+7d", "1.5h", "1000001d", "4294967296s", "7w"}) {
        const auto age = parse_age("--x", bad);
        REQUIRE_FALSE(age.ok());
        CHECK(age.error().message.find("--x '" + std::string(bad) + "' is not an age") == 0);
    }
}

TEST_CASE("sizes, ages and times as text") {
    CHECK(size_text(0) == "0 B");
    CHECK(size_text(1023) == "1023 B");
    CHECK(size_text(1024) == "1.0 KiB");
    CHECK(size_text(3u << 19) == "1.5 MiB");
    CHECK(size_text(5ull << 40) == "5.0 TiB");
    CHECK(size_text(5ull << 50) == "5120.0 TiB");
    CHECK(age_text(-5) == "0s");
    CHECK(age_text(59) == "59s");
    CHECK(age_text(60) == "1m");
    CHECK(age_text(86399) == "23h");
    CHECK(age_text(400 * 86400) == "400d");
    CHECK(utc_text(0) == "1970-01-01T00:00:00Z");
    CHECK(utc_text(1767225599) == "2025-12-31T23:59:59Z");
}

TEST_CASE("the id in an entry file's name") {
    const std::string digits(30, 'a');
    CHECK(id_of_path("/c/v1/sm_90/0f/" + digits + "-0123456789abcdef.nqc") == "0f" + digits + "-0123456789abcdef");
    CHECK(id_of_path("/c/v1/sm_90/0f/" + digits + "-0123456789abcde.nqc").empty());
    CHECK(id_of_path("/c/v1/sm_90/0g/" + digits + "-0123456789abcdef.nqc").empty());
    CHECK(id_of_path("/c/v1/sm_90/0f/" + digits + "0-123456789abcdef.nqc").empty());
    CHECK(id_of_path("x.nqc").empty());
}
