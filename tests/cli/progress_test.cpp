#include "progress.h"

#include "support/catch.h"

using nq::cli::bar_text;

TEST_CASE("a bar with rate and time that is left") {
    CHECK(bar_text({.total = 10, .done = 5}, 5) == "[============            ] 5/10  1.0/s  0:05 left");
    CHECK(bar_text({.total = 200, .done = 20}, 10) == "[==                      ] 20/200  2.0/s  1:30 left");
    CHECK(bar_text({.total = 10, .done = 10}, 5) == "[========================] 10/10  2.0/s  0:00 left");
    CHECK(bar_text({.total = 10, .done = 11}, 11) == "[========================] 11/11  1.0/s  0:00 left");
}

TEST_CASE("what was there already tells nothing about the time that is left") {
    CHECK(bar_text({.total = 200, .done = 100, .hits = 90}, 10) == "[============            ] 100/200  1.0/s  1:40 left");
    CHECK(bar_text({.total = 200, .done = 90, .hits = 90}, 0.5) == "[==========              ] 90/200  180.0/s  --:-- left");
    CHECK(bar_text({.total = 90, .done = 90, .hits = 90}, 0.5) == "[========================] 90/90  180.0/s  0:00 left");
}
