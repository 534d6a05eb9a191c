//! What a real process meets that preloads this library: a wall clock that is wrong, a disk that is slow.
//! Each takes the place of functions of the C library and is told by an environment variable what to do;
//! without it everything is as it was. Linux with glibc only.

mod clock;
mod disk;
