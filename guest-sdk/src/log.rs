//! Lines for the operator. In a native build they go to stderr.

pub use crate::bindings::runner::mainstay::plugin::logging::Level;

/// Writes one line.
pub fn log(level: Level, message: &str) {
    #[cfg(target_arch = "wasm32")]
    crate::bindings::runner::mainstay::plugin::logging::log(level, message);
    #[cfg(not(target_arch = "wasm32"))]
    eprintln!("{level:?}: {message}");
}

/// Writes a line of level `trace`.
pub fn trace(message: impl AsRef<str>) {
    log(Level::Trace, message.as_ref());
}

/// Writes a line of level `debug`.
pub fn debug(message: impl AsRef<str>) {
    log(Level::Debug, message.as_ref());
}

/// Writes a line of level `info`.
pub fn info(message: impl AsRef<str>) {
    log(Level::Info, message.as_ref());
}

/// Writes a line of level `warn`.
pub fn warn(message: impl AsRef<str>) {
    log(Level::Warn, message.as_ref());
}

/// Writes a line of level `error`.
pub fn error(message: impl AsRef<str>) {
    log(Level::Error, message.as_ref());
}

/// Has a panic's message logged: the trap itself carries none. Called at the beginning of every
/// export; only the first call of an instance does anything.
#[doc(hidden)]
pub fn install_panic_hook() {
    #[cfg(target_arch = "wasm32")]
    {
        static ONCE: std::sync::Once = std::sync::Once::new();
        ONCE.call_once(|| std::panic::set_hook(Box::new(|panic| error(panic.to_string()))));
    }
}
