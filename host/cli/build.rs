//! Builds the plugins that the binary brings along.

fn main() {
    mainstay_guest_build::embed(&[
        "mainstay-runner-loop",
        "mainstay-provider-openai-chat",
        "mainstay-provider-parrot",
        "mainstay-toolbox-files",
        "mainstay-toolbox-web",
    ]);
}
