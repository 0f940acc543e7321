//! The keeper: the small program beside each Pod that makes its processes, holds their exit codes and writes their logs.
//!
//! The program itself is in `program/`: freestanding, without an allocator or a C library, so that what runs between
//! clone and exec is raw system calls on prepared bytes, and an idle Pod costs a few pages (docs/decisions/023.md). It
//! decides nothing: it runs the recipes that `runtime-core` writes. Here it is an array of bytes.

/// The program, a static ELF file for the architecture of this build.
pub const PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/keeper"));

#[cfg(test)]
mod tests {
    use super::PROGRAM;

    #[test]
    fn it_is_a_small_static_program() {
        assert_eq!(&PROGRAM[..4], b"\x7fELF");
        assert!(PROGRAM.len() < 64 << 10, "{} bytes", PROGRAM.len());
        let interpreter = PROGRAM.windows(4).any(|w| w == b"ld-l");
        assert!(!interpreter, "it must not need a dynamic linker");
    }
}
