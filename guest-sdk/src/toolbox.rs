//! Toolboxes: tools that do something.

use std::marker::PhantomData;

use serde::de::DeserializeOwned;

pub use crate::bindings::toolbox::exports::mainstay::plugin::tools::{
    CallError, CallRequest, Output, Tool,
};
pub use crate::http::{FetchError, Request, Response};
pub use crate::manifest::{ToolboxManifest, WorkspaceAccess};
pub use crate::types::{Effect, NewMedia, ToolDefinition};
pub use crate::workspace::Workspace;

use crate::bindings::toolbox::exports::mainstay::plugin::tools;

/// Tools that do something. Export it with [`toolbox!`](crate::toolbox!).
pub trait Toolbox {
    /// Whether its calls use [`Host::workspace`]. A toolbox that does not, imports nothing of WASI.
    const FILES: bool = false;

    /// What it says of itself. The same at every call.
    fn manifest() -> ToolboxManifest;

    /// The tools, under these options (JSON).
    ///
    /// # Errors
    ///
    /// Refuses the toolbox; the text is for people.
    fn tools(options: Option<&str>) -> Result<Vec<Tool>, String>;

    /// Runs one call.
    ///
    /// # Errors
    ///
    /// Becomes the call's result, worded for the model.
    fn call(call: &CallRequest, host: &dyn Host) -> Result<Vec<Output>, CallError>;
}

/// What the host does for a running call.
pub trait Host {
    /// Shows people how far the call is.
    fn progress(&self, message: &str);

    /// True once the call is to stop; it then has a second to clean up and answer.
    fn cancelled(&self) -> bool;

    /// Sends a request and gives the whole answer, whatever its status.
    ///
    /// # Errors
    ///
    /// There is no answer. The cases say what may have happened.
    fn fetch(&self, request: &Request) -> Result<Response, FetchError>;

    /// The session's files; `None` where no workspace was granted, or [`Toolbox::FILES`] is false.
    fn workspace(&self) -> Option<Box<dyn Workspace + '_>>;
}

impl CallRequest {
    /// Reads the arguments.
    ///
    /// # Errors
    ///
    /// [`CallError::InvalidArguments`], in the parser's words.
    pub fn arguments<T: DeserializeOwned>(&self) -> Result<T, CallError> {
        serde_json::from_str(&self.arguments)
            .map_err(|error| CallError::InvalidArguments(error.to_string()))
    }

    /// Reads the options; the default where there are none.
    ///
    /// # Errors
    ///
    /// [`CallError::Failed`] if they cannot be read: the model cannot mend that.
    pub fn options<T: DeserializeOwned + Default>(&self) -> Result<T, CallError> {
        match &self.options {
            Some(options) => serde_json::from_str(options).map_err(|error| {
                CallError::Failed(format!("the toolbox's options cannot be read: {error}"))
            }),
            None => Ok(T::default()),
        }
    }

    /// The error of a tool that this toolbox does not have.
    #[must_use]
    pub fn unknown_tool(&self) -> CallError {
        CallError::Failed(format!("there is no tool `{}` here", self.tool))
    }
}

impl Tool {
    /// A tool with the JSON Schema of its input.
    pub fn new(
        name: impl Into<String>,
        effect: Effect,
        description: impl Into<String>,
        input_schema: impl Into<String>,
    ) -> Self {
        Self {
            definition: ToolDefinition {
                name: name.into(),
                description: description.into(),
                input_schema: input_schema.into(),
            },
            effect,
        }
    }
}

impl Output {
    /// A result of one text.
    pub fn text(text: impl Into<String>) -> Vec<Self> {
        vec![Self::Text(text.into())]
    }
}

impl From<String> for CallError {
    fn from(text: String) -> Self {
        Self::Failed(text)
    }
}

impl From<&str> for CallError {
    fn from(text: &str) -> Self {
        Self::Failed(text.to_owned())
    }
}

/// The host itself.
#[cfg(target_arch = "wasm32")]
struct Imported<T>(PhantomData<T>);

#[cfg(target_arch = "wasm32")]
impl<T: Toolbox> Host for Imported<T> {
    fn progress(&self, message: &str) {
        crate::bindings::toolbox::mainstay::plugin::calling::progress(message);
    }

    fn cancelled(&self) -> bool {
        crate::bindings::toolbox::mainstay::plugin::calling::cancelled()
    }

    fn fetch(&self, request: &Request) -> Result<Response, FetchError> {
        crate::bindings::toolbox::mainstay::plugin::fetching::fetch(request)
    }

    fn workspace(&self) -> Option<Box<dyn Workspace + '_>> {
        if T::FILES {
            crate::workspace::granted()
        } else {
            None
        }
    }
}

/// The export of a toolbox. Made by [`toolbox!`](crate::toolbox!).
#[doc(hidden)]
pub struct Export<T>(PhantomData<T>);

impl<T: Toolbox> tools::Guest for Export<T> {
    fn describe() -> ToolboxManifest {
        crate::log::install_panic_hook();
        T::manifest()
    }

    fn list(options: Option<String>) -> Result<Vec<Tool>, String> {
        crate::log::install_panic_hook();
        T::tools(options.as_deref())
    }

    #[cfg(target_arch = "wasm32")]
    fn call(request: CallRequest) -> Result<Vec<Output>, CallError> {
        crate::log::install_panic_hook();
        T::call(&request, &Imported::<T>(PhantomData))
    }

    #[cfg(not(target_arch = "wasm32"))]
    fn call(request: CallRequest) -> Result<Vec<Output>, CallError> {
        T::call(&request, &crate::testing::Host::new())
    }
}

/// Exports a [`Toolbox`] from the crate. Outside WebAssembly it only checks that it is one.
#[macro_export]
macro_rules! toolbox {
    ($toolbox:ty) => {
        const _: () = {
            type MainstayExport = $crate::private::ToolboxExport<$toolbox>;
            #[cfg(target_arch = "wasm32")]
            $crate::bindings::toolbox::export_toolbox!(
                MainstayExport with_types_in $crate::bindings::toolbox
            );
            #[cfg(not(target_arch = "wasm32"))]
            const _: fn() = || {
                fn is_toolbox<T: $crate::Toolbox>() {}
                is_toolbox::<$toolbox>();
                let _: ::core::option::Option<MainstayExport> = ::core::option::Option::None;
            };
        };
    };
}
