//! Takes the process's randomness and time into the seed's hands. Ids, jitter, hash maps and the
//! runtime's choice among equals all come from the C library's `getrandom`, and what is not on the
//! runtime's paused clock from `clock_gettime`; this program has functions of these names, and so they
//! are the ones that are called. They cannot be taken back: a run has a process of its own, and with it
//! an allowance of processor time.

#[cfg(target_os = "linux")]
mod seized {
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

    static SEIZED: AtomicBool = AtomicBool::new(false);
    static RANDOM: AtomicU64 = AtomicU64::new(0);
    /// In ns. Moves by a little whenever it is asked for.
    static TIME: AtomicU64 = AtomicU64::new(1_700_000_000_000_000_000);
    const TICK_NS: u64 = 1_000;

    /// Processor time that a run may take, in s; the longest take a hundredth of it.
    const ALLOWANCE_S: libc::rlim_t = 20;

    pub(crate) fn seize(seed: u64) {
        let limit = libc::rlimit {
            rlim_cur: ALLOWANCE_S,
            rlim_max: ALLOWANCE_S,
        };
        // SAFETY: the limit is a whole value that outlives the call.
        if unsafe { libc::setrlimit(libc::RLIMIT_CPU, &raw const limit) } != 0 {
            eprintln!("warning: a run that computes without end will not be stopped early");
        }
        RANDOM.store(seed, Ordering::SeqCst);
        SEIZED.store(true, Ordering::SeqCst);
    }

    /// SplitMix64.
    fn next() -> u64 {
        const STEP: u64 = 0x9E37_79B9_7F4A_7C15;
        let mut z = RANDOM.fetch_add(STEP, Ordering::SeqCst).wrapping_add(STEP);
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// # Safety
    /// As the C library's function of this name: `buffer` is valid for writes of `length` bytes.
    #[unsafe(no_mangle)]
    unsafe extern "C" fn getrandom(
        buffer: *mut libc::c_void,
        length: libc::size_t,
        flags: libc::c_uint,
    ) -> libc::ssize_t {
        if !SEIZED.load(Ordering::SeqCst) {
            // SAFETY: the arguments are the caller's.
            let done = unsafe { libc::syscall(libc::SYS_getrandom, buffer, length, flags) };
            return done as libc::ssize_t;
        }
        let bytes = buffer.cast::<u8>();
        for n in 0..length {
            // SAFETY: the caller promises `length` bytes.
            unsafe { bytes.add(n).write(next() as u8) };
        }
        length as libc::ssize_t
    }

    /// # Safety
    /// As the C library's function of this name: `time` is valid for a write.
    #[unsafe(no_mangle)]
    unsafe extern "C" fn clock_gettime(
        clock: libc::clockid_t,
        time: *mut libc::timespec,
    ) -> libc::c_int {
        if !SEIZED.load(Ordering::SeqCst) {
            // SAFETY: the arguments are the caller's.
            let done = unsafe { libc::syscall(libc::SYS_clock_gettime, clock, time) };
            return done as libc::c_int;
        }
        let now = TIME.fetch_add(TICK_NS, Ordering::SeqCst);
        let now = libc::timespec {
            tv_sec: (now / 1_000_000_000) as libc::time_t,
            tv_nsec: (now % 1_000_000_000) as libc::c_long,
        };
        // SAFETY: the caller promises that it can be written.
        unsafe { time.write(now) };
        0
    }
}

#[cfg(target_os = "linux")]
pub(crate) use seized::seize;

/// Elsewhere ids and jitter stay as they are: a seed still gives its script, and not every order.
#[cfg(not(target_os = "linux"))]
pub(crate) fn seize(_seed: u64) {}
