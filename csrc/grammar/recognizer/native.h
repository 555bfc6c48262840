// A recogniser in C, owned.
#pragma once

#include <weft/matcher.h>

#include <memory>
#include <utility>

#include "grammar/recognizer/handle.h"

namespace weft {

// `keep` lives as long as the recogniser: what made it.
std::unique_ptr<Recognizing> native_recognizer(weft_recognizer recognizer, std::shared_ptr<const void> keep);

// What is wrong with a table of functions, or "".
std::string check_ops(const weft_recognizer_ops *ops);
std::string check_ops(const weft_matcher_ops *ops);

}  // namespace weft
