// Text of others on a terminal: nothing in it acts.
#include "printable.h"
#include "support/catch.h"

using nq::cli::printable;

TEST_CASE("text without control characters stays as it is") {
    for (const char* text : {"", "plain", "a=b \\ \"c\" ~", "Käse", "\u20ac \u7d20 \U0001f600 \U0010ffff"})
        CHECK(printable(text) == text);
}

TEST_CASE("control characters are written out") {
    CHECK(printable("a\nb\tc\r") == "a\\nb\\tc\\x0d");
    CHECK(printable("\x1b[2J\x07\x7f") == "\\x1b[2J\\x07\\x7f");
    CHECK(printable(std::string_view("a\0b", 3)) == "a\\x00b");
    CHECK(printable("\u0080\u009b31m\u009f\u00a0") == "\\xc2\\x80\\xc2\\x9b31m\\xc2\\x9f\u00a0");
    CHECK(printable("a\nb\tc\x1b", "\n") == "a\nb\\tc\\x1b");
}

TEST_CASE("bytes that are no UTF-8 are written out, each by itself") {
    CHECK(printable("\x80") == "\\x80");
    CHECK(printable("\xff"
                    "a") == "\\xffa");
    CHECK(printable("\xc3") == "\\xc3");  // cut short
    CHECK(printable("\xe2\x82"
                    "a") ==
          "\\xe2\\x82"
          "a");
    CHECK(printable("\xc0\x9b") == "\\xc0\\x9b");  // overlong forms
    CHECK(printable("\xe0\x82\x9b") == "\\xe0\\x82\\x9b");
    CHECK(printable("\xf0\x80\x82\x9b") == "\\xf0\\x80\\x82\\x9b");
    CHECK(printable("\xed\xa0\x80") == "\\xed\\xa0\\x80");  // a surrogate
    CHECK(printable("\xf4\x90\x80\x80") == "\\xf4\\x90\\x80\\x80");
    CHECK(printable("\xf5\x80\x80\x80") == "\\xf5\\x80\\x80\\x80");
    CHECK(printable("\xc2\n") == "\\xc2\\n");
}
