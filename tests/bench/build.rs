//! Builds the plugins that are measured.

fn main() {
    mainstay_guest_build::embed(&[
        "mainstay-runner-loop",
        "mainstay-provider-openai-chat",
        "mainstay-provider-parrot",
        "mainstay-toolbox-files",
        "mainstay-test-bench-runner",
        "mainstay-test-bench-toolbox",
        "mainstay-test-hostile-runner",
        "mainstay-test-planner",
    ]);
}
