"""Methods: what adds the target's term to the loss."""
