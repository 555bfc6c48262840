"""Operations on tensors that torch does not have, each a kernel and its plain reference."""
