//! Client libraries of others against our API server: what they see is what counts. Tests only, in a room of their
//! own, so that what these libraries bring along reaches nothing else.
