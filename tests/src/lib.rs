//! Shared helpers of the outer test ring.
