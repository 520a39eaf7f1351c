#include "files.h"

#include "errors.h"
#include "file_samples.h"
#include "support/catch.h"
#include "support/temp_directory.h"

#include <sys/stat.h>

#include <filesystem>

using namespace nq;
using namespace nq::cli;
using namespace nq::test;

TEST_CASE("write_file replaces a file whole and leaves nothing beside it") {
    const TempDirectory directory;
    const std::string path = directory / "out.bin";
    save(path, {9, 9, 9, 9, 9, 9});
    REQUIRE(write_file(path, "ab", Blob{1, 2}).ok());
    CHECK(read(path) == Blob{'a', 'b', 1, 2});
    CHECK(std::distance(std::filesystem::directory_iterator(directory.path()), {}) == 1);
}

TEST_CASE("a write that fails keeps the old file and removes the new one") {
    const TempDirectory directory;
    const std::string path = directory / "taken";
    std::filesystem::create_directory(path);  // a rename cannot replace a directory
    const auto written = write_file(path, "", Blob{1});
    REQUIRE_FALSE(written.ok());
    CHECK(exit_code_of(written.error()) == kFailed);
    CHECK(written.error().message.find("'" + path + "'") != std::string::npos);
    CHECK(std::distance(std::filesystem::directory_iterator(directory.path()), {}) == 1);
    CHECK_FALSE(write_file(directory / "missing/out.bin", "", Blob{1}).ok());
}

TEST_CASE("inputs must be regular files") {
    const TempDirectory directory;
    CHECK(MappedFile::open(directory.path()).error().message.find("not a regular file") != std::string::npos);
    CHECK(MappedFile::open(directory / "none").error().message.find("No such file") != std::string::npos);
    REQUIRE(mkfifo((directory / "pipe").c_str(), 0600) == 0);  // must not wait for a writer
    CHECK(MappedFile::open(directory / "pipe").error().message.find("not a regular file") != std::string::npos);
    save(directory / "empty", {});
    CHECK(MappedFile::open(directory / "empty")->bytes().empty());
}

TEST_CASE("an output directory that cannot be made is a usage error") {
    const TempDirectory directory;
    save(directory / "file", {1});
    CHECK(create_output_dir(directory / "a/b/c").ok());
    CHECK(create_output_dir(directory / "a/b/c").ok());
    CHECK(exit_code_of(create_output_dir(directory / "file").error()) == kUsage);
    CHECK(exit_code_of(create_output_dir(directory / "file/below").error()) == kUsage);
}
