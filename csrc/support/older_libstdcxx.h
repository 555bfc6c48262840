// Included before every file of the extension, so that an extension compiled by GCC 12 also loads with GCC 11's
// libstdc++.
#pragma once

// GCC 12 gave this function a new version and kept the old one, which does the same. No other function that the
// extension calls is new in GCC 12's libstdc++.
#if defined(__x86_64__) && defined(__linux__)
__asm__(
    ".symver _ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE,"
    "_ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE@GLIBCXX_3.4.11");
#endif
