//! A wall clock that is wrong: `clock_gettime` adds what a file says, which may change at any moment. The
//! monotonic clocks stay right, as they do on a machine whose time is set.

use std::ffi::CStr;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicI64, AtomicPtr, Ordering};

use libc::{c_int, clockid_t, timespec};

/// Names the file: eight bytes, the seconds to add as a signed integer of the machine's byte order.
const FILE: &CStr = c"MAINSTAY_TEST_CLOCK";

/// Stands for a file that is not there.
static RIGHT: AtomicI64 = AtomicI64::new(0);

/// Takes the place of the C library's.
///
/// # Safety
///
/// `time` points to what may be written, as for the C library's.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn clock_gettime(clock: clockid_t, time: *mut timespec) -> c_int {
    // SAFETY: the caller vouches for `time`.
    let answer = unsafe { libc::syscall(libc::SYS_clock_gettime, clock, time) };
    if answer == 0 && matches!(clock, libc::CLOCK_REALTIME | libc::CLOCK_REALTIME_COARSE) {
        // SAFETY: the kernel has just written there.
        unsafe { (*time).tv_sec += shift().load(Ordering::Relaxed) };
    }
    answer as c_int
}

/// What is to be added, in seconds. It takes no lock and allocates nothing: it is called from anywhere.
fn shift() -> &'static AtomicI64 {
    static MAPPED: AtomicPtr<AtomicI64> = AtomicPtr::new(null_mut());
    let mut mapped = MAPPED.load(Ordering::Acquire);
    if mapped.is_null() {
        // Two threads may both map it, which does no harm.
        mapped = map().unwrap_or((&raw const RIGHT).cast_mut());
        MAPPED.store(mapped, Ordering::Release);
    }
    // SAFETY: a mapping that is never taken back, or a static.
    unsafe { &*mapped }
}

fn map() -> Option<*mut AtomicI64> {
    // SAFETY: plain calls of the C library; the mapping is of a file that outlives the process's interest.
    unsafe {
        let path = libc::getenv(FILE.as_ptr());
        if path.is_null() {
            return None;
        }
        let file = libc::open(path, libc::O_RDONLY | libc::O_CLOEXEC);
        if file < 0 {
            return None;
        }
        let len = size_of::<AtomicI64>();
        let at = libc::mmap(null_mut(), len, libc::PROT_READ, libc::MAP_SHARED, file, 0);
        libc::close(file);
        (at != libc::MAP_FAILED).then_some(at.cast())
    }
}
