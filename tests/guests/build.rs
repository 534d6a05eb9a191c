//! Builds the shipped plugins and the hostile ones.

fn main() {
    mainstay_guest_build::embed(&[
        "mainstay-runner-loop",
        "mainstay-provider-openai-chat",
        "mainstay-provider-parrot",
        "mainstay-toolbox-files",
        "mainstay-toolbox-web",
        "mainstay-test-hostile-runner",
        "mainstay-test-hostile-provider",
        "mainstay-test-hostile-toolbox",
        "mainstay-test-planner",
        "mainstay-test-broken-runner",
        "mainstay-test-broken-provider",
        "mainstay-test-broken-toolbox",
        "mainstay-test-successor",
    ]);
}
