//! A disk that takes its time to store: each sync that worked lasts longer by what
//! `MAINSTAY_TEST_FSYNC_US` says, in microseconds.

use std::ffi::CStr;
use std::sync::atomic::{AtomicI64, Ordering};

use libc::{c_int, c_long};

const LONGER: &CStr = c"MAINSTAY_TEST_FSYNC_US";

/// Takes the place of the C library's.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn fsync(file: c_int) -> c_int {
    sync(libc::SYS_fsync, file)
}

/// Takes the place of the C library's.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn fdatasync(file: c_int) -> c_int {
    sync(libc::SYS_fdatasync, file)
}

fn sync(how: c_long, file: c_int) -> c_int {
    // SAFETY: these calls take a number that need not name a file.
    let answer = unsafe { libc::syscall(how, file) };
    let longer = longer();
    if answer == 0 && longer > 0 {
        let pause = libc::timespec {
            tv_sec: longer / 1_000_000,
            tv_nsec: longer % 1_000_000 * 1000,
        };
        // SAFETY: `pause` is read, and what would remain of it is not asked for.
        unsafe { libc::nanosleep(&raw const pause, std::ptr::null_mut()) };
    }
    answer as c_int
}

/// In microseconds; asked of the environment once.
fn longer() -> i64 {
    static TOLD: AtomicI64 = AtomicI64::new(-1);
    let mut told = TOLD.load(Ordering::Relaxed);
    if told < 0 {
        // SAFETY: the environment is read, and what it gives is copied at once.
        told = unsafe {
            let value = libc::getenv(LONGER.as_ptr());
            if value.is_null() {
                0
            } else {
                libc::atoll(value).max(0)
            }
        };
        TOLD.store(told, Ordering::Relaxed);
    }
    told
}
