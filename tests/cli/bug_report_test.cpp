// What a bug report does not tell.
#include "bug_report.h"
#include "support/catch.h"

using nq::cli::PrivateNames;
using nq::cli::without_names;

TEST_CASE("a bug report names neither the home directory, nor the user, nor the host") {
    const PrivateNames names{"/home/ada", "ada", "build-7"};
    CHECK(without_names("root /home/ada/.cache/normquant", names) == "root ~/.cache/normquant");
    CHECK(without_names("/home/ada", names) == "~");
    CHECK(without_names("/data/ada/cache on build-7", names) == "/data/USER/cache on HOST");
    // Within other words they are no names.
    CHECK(without_names("/data/adam, cicada, ada_1, build-70", names) == "/data/adam, cicada, ada_1, build-70");
    CHECK(without_names("ada ada", names) == "USER USER");
}

TEST_CASE("a bug report made as root names nobody's home directory") {
    const PrivateNames names{"/root", "root", ""};
    CHECK(without_names("/home/ada/.cache, /home/bob-2.x: of", names) == "/home/USER/.cache, /home/USER: of");
    CHECK(without_names("/root/cache/normquant", names) == "~/cache/normquant");
}

TEST_CASE("names that everybody has, or nobody, are left alone") {
    CHECK(without_names("root on localhost in /", {"/", "root", "localhost"}) == "root on localhost in /");
    CHECK(without_names("as it is", {}) == "as it is");
}
