use std::time::Duration;

use mainstay_core::approval::Verdict;
use mainstay_core::plugin::Price;

use super::*;

fn read(text: &str) -> Result<Loaded> {
    parse(Path::new("mainstay.toml"), text)
}

#[track_caller]
fn check(text: &str, place: &str, cause: &str, hint: Option<&str>) {
    let error = read(text).expect_err("wrong");
    assert_eq!(error.code, Code::Config);
    assert!(error.message.contains(place), "{}", error.message);
    assert!(error.causes[0].contains(cause), "{:?}", error.causes);
    assert_eq!(error.hint.as_deref(), hint);
}

#[test]
fn unknown_keys_are_told_with_line_and_nearest_name() {
    let text = "[agents.a]\nrunner = \"loop\"\nsytem-prompt = \"x\"\n";
    check(
        text,
        "mainstay.toml:3",
        "sytem-prompt",
        Some("did you mean `system-prompt`?"),
    );
    check(
        "\n[provider.x]\n",
        "mainstay.toml:2",
        "provider",
        Some("did you mean `providers`?"),
    );
    check(
        "[node]\nlease = \"soon\"\n",
        "mainstay.toml:2",
        "`soon` is no time",
        None,
    );
}

#[test]
fn a_server_lets_somebody_in() {
    let text = "[server]\nmax-connections = 7\nread-timeout = \"2s\"\n";
    let server = read(text).unwrap().server;
    let set = (server.max_connections, server.read_timeout);
    assert_eq!(set, (7, Duration::from_secs(2)));
    for (wrong, cause) in [
        ("max-connections = 0", "at least 1"),
        ("read-timeout = \"0s\"", "not be zero"),
    ] {
        let text = format!("[server]\n{wrong}\n");
        check(&text, "mainstay.toml", cause, None);
    }
}

#[test]
fn rules_for_tools_are_read_in_their_order() {
    let text = r#"
        [[agents.a.tool-rules]]
        tool = "write_*"
        arguments = { path = "docs/*" }
        then = "allow"
        [[agents.a.tool-rules]]
        tool = "*"
        then = "ask"
    "#;
    let policy = &read(text).unwrap().config.agents["a"].tool_policy;
    let verdicts: Vec<Verdict> = policy.0.iter().map(|rule| rule.then).collect();
    assert_eq!(verdicts, [Verdict::Allow, Verdict::Ask]);
    assert_eq!(policy.0[0].arguments["path"], "docs/*");
    let wrong = |rule: &str| format!("[agents.a]\ntool-rules = [{rule}]\n");
    check(
        &wrong(r#"{ tool = "", then = "deny" }"#),
        "mainstay.toml:2",
        "names no tool",
        None,
    );
    check(
        &wrong(r#"{ tool = "x", arguments = { "" = "y" }, then = "deny" }"#),
        "mainstay.toml:2",
        "without a name",
        None,
    );
    check(
        &wrong(r#"{ tool = "x", then = "aks" }"#),
        "mainstay.toml:2",
        "aks",
        Some("did you mean `ask`?"),
    );
    check(
        &wrong(r#"{ tool = "x" }"#),
        "mainstay.toml:2",
        "missing field `then`",
        None,
    );
}

#[test]
fn an_unknown_provider_is_told_with_line_and_nearest_name() {
    let text = "[agents.a]\nprovider = \"opnai\"\n";
    check(
        text,
        "mainstay.toml:2",
        "`opnai`, which is not configured",
        Some("did you mean `openai`?"),
    );
    let text = "[agents.a]\nprovider = \"elsewhere\"\n";
    check(
        text,
        "mainstay.toml:2",
        "elsewhere",
        Some("add a table `[providers.elsewhere]`"),
    );
}

#[test]
fn numbers_that_make_no_sense_and_times_that_contradict_each_other_are_refused() {
    check(
        "[node]\nrenew-every = \"29s\"\n",
        "mainstay.toml",
        "shorter than `lease`",
        None,
    );
    for (table, cause) in [
        ("[node]\nlease = \"0s\"\n", "`lease` must be at least"),
        ("[node]\nlease = \"1ms\"\n", "`lease` must be at least"),
        ("[node]\ncapacity = 0\n", "`capacity` must be at least 1"),
        ("[node]\nmax-tries = 0\n", "`max-tries` must be at least 1"),
        (
            "[node]\nresume-concurrency = 0\n",
            "`resume-concurrency` must be at least 1",
        ),
        ("[agents.a]\nsteps = 0\n", "the agent `a` may take no step"),
    ] {
        check(table, "mainstay.toml", cause, None);
    }
    let loaded = read("[node]\nlease = \"6s\"\nmax-attempts = 5\n").expect("right");
    assert_eq!(loaded.settings.renew_every, Duration::from_secs(2));
    assert_eq!(loaded.settings.max_attempts, 5);
}

#[test]
fn a_file_lays_over_the_defaults() {
    let loaded = read(
        "[agents.coder]\nprovider = \"local\"\ntoolboxes = [\"files\", { alias = \"web\", options = { a = 1 } }]\n\
         [providers.local]\nplugin = \"openai-chat\"\nbase-url = \"http://127.0.0.1:8000/v1/\"\nmodel = \"m\"\n\
         secrets = { api-key = { file = \"/run/key\" } }\n\
         [toolboxes.web]\nhttp = [{ url = \"https://*.example.com/docs\", methods = [\"get\"] }]\n",
    )
    .expect("right");
    let agent = &loaded.config.agents["coder"];
    assert_eq!(
        agent.model,
        ModelRef {
            provider: "local".into(),
            model: "m".into()
        }
    );
    assert_eq!(agent.toolboxes[1].options.as_deref(), Some("{\"a\":1}"));
    assert!(loaded.config.agents.contains_key(AGENT));
    assert_eq!(
        loaded.config.providers["local"].base_url.as_deref(),
        Some("http://127.0.0.1:8000/v1")
    );
    let access = &loaded.providers["local"];
    assert!(access.http[0].private);
    assert_eq!(access.secrets["api-key"], Secret::File("/run/key".into()));
    // From the folder of the configuration, wherever the process was started.
    let text = "[toolboxes.web]\nsecrets = { token = { file = \"here\" } }\n";
    let elsewhere = parse(Path::new("/etc/mainstay/mainstay.toml"), text).expect("right");
    let token = &elsewhere.toolboxes["web"].secrets["token"];
    assert_eq!(*token, Secret::File("/etc/mainstay/here".into()));
    let rule = &loaded.toolboxes["web"].http[0];
    assert_eq!((rule.host.as_str(), rule.private), ("*.example.com", false));
    assert_eq!(
        (rule.path_prefix.as_str(), rule.methods.as_slice()),
        ("/docs", ["GET".to_owned()].as_slice())
    );
}

#[test]
fn plugin_2_plugins_come_from_files_beside_the_file_and_from_registries() {
    let text =
        "[plugins.near]\nsource = \"near.wasm\"\n[plugins.far]\nsource = \"oci://h/far:1\"\n";
    let loaded = parse(Path::new("/etc/mainstay.toml"), text).expect("right");
    let near = Source::File("/etc/near.wasm".into());
    assert_eq!(loaded.plugins["near"], near);
    let far = Source::Registry("oci://h/far:1".parse().expect("a reference"));
    assert_eq!(loaded.plugins["far"], far);
    check(
        "[plugins.far]\nsource = \"oci://h/far\"\n",
        "mainstay.toml:2",
        "needs a tag",
        None,
    );
    check(
        "\n[registries.\"h:80\"]\nusername = \"u\"\n",
        "mainstay.toml:2",
        "`username` and `password`",
        None,
    );
}

#[test]
fn budgets_and_prices_are_in_dollars_and_times() {
    let loaded = read(
        "[agents.a]\ntokens = 1000\ncost = 2.5\ntime = \"10m\"\n\
         [providers.parrot]\n\
         models = [{ id = \"m\", price = { input = 3, output = 15, cache-read = 0.3 } }]\n\
         [node]\nmodel-idle = \"5s\"\n",
    )
    .expect("right");
    let agent = &loaded.config.agents["a"];
    assert_eq!(
        (agent.tokens, agent.cost, agent.time_ms),
        (Some(1000), Some(2_500_000), Some(600_000))
    );
    let price = loaded.config.providers["parrot"].models[0].price;
    let wanted = Price {
        input: 3_000_000,
        output: 15_000_000,
        cache_read: Some(300_000),
        cache_write: None,
    };
    assert_eq!(price, Some(wanted));
    assert_eq!(loaded.settings.timeouts.idle, Duration::from_secs(5));
    check(
        "[agents.a]\ncost = -1\n",
        "mainstay.toml:2",
        "`-1` is no amount",
        None,
    );
    let dear =
        "[providers.parrot]\nmodels = [{ id = \"m\", price = { input = 5000, output = 1 } }]\n";
    check(dear, "mainstay.toml", "the price of the model `m`", None);
}

#[test]
fn urls_of_grants_are_checked() {
    for wrong in [
        "api.test",
        "ftp://a",
        "https://",
        "https://u@a/",
        "https://a:x/",
        "https://a/?b",
    ] {
        assert!(rule(wrong).is_err(), "{wrong}");
    }
    let rule = rule("http://[::1]:80").expect("a URL");
    assert_eq!(
        (rule.host.as_str(), rule.port, rule.private),
        ("[::1]", Some(80), true)
    );
}

#[test]
fn the_nearest_name_is_near() {
    assert_eq!(
        nearest("modle", ["model", "models"].into_iter()),
        Some("model")
    );
    assert_eq!(nearest("xyz", ["model"].into_iter()), None);
}
