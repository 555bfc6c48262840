// Included before every file of the extension: compiled by GCC 12, it loads with the libstdc++ of GCC 11 too.
#pragma once

// GCC 12 gave this function a version of its own and kept the one before, which does the same. It is all that the
// extension would need of GCC 12's libstdc++.
#if defined(__x86_64__) && defined(__linux__)
__asm__(
    ".symver _ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE,"
    "_ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE@GLIBCXX_3.4.11");
#endif
