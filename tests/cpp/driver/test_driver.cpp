#include "check.h"

int main(int argc, char **argv) { return weft::test::run(argc, argv); }
