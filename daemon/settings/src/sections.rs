//! Every key there is: type, range, default and words, once.
//!
//! The words of a key are its documentation in code, in the reference page and
//! in the example file. A key that may stay unset says "When unset" what holds.

use std::path::PathBuf;
use std::time::Duration;

use hearth_scope::CapabilitySet;
use url::Url;

use crate::checks;
use crate::layers::Resolved;
use crate::secret::SecretRef;
use crate::spec::{Kind, Section, SectionSpec, Value, choice, number, section, set, text, texts, unset};

/// All sections in the order of the reference.
pub(crate) const SECTIONS: &[SectionSpec] = &[
    Home::SPEC,
    Paths::SPEC,
    Unlock::SPEC,
    Model::SPEC,
    Endpoint::SPEC,
    Turn::SPEC,
    Agent::SPEC,
    Tools::SPEC,
    FileRoot::SPEC,
    FetchTool::SPEC,
    ShellTool::SPEC,
    Console::SPEC,
    Limits::SPEC,
    Log::SPEC,
];

section! {
    /// The household.
    Home = "home" {
        /// Name of the home, as it greets and signs.
        name: String = set("\"Home\""), text(64, "one line of text", checks::filled);
        /// Time zone in which the home lives, by its IANA name.
        /// When unset, the time zone of the system.
        time_zone: Option<String> = unset("\"Europe/Berlin\""), text(64, "a time zone name", checks::time_zone);
    }
}

section! {
    /// Where the store lies. Both are created by `hearth init` and never again:
    /// when the marker is there and the store is not, the daemon stops and says so.
    Paths = "paths" {
        /// Folder of the encrypted store.
        state: PathBuf = set("\"/var/lib/hearth/store\""), text(512, "an absolute path", checks::absolute);
        /// File that says that a store was once created. Keep it on another
        /// partition than the store, so that a failed mount is noticed.
        marker: PathBuf = set("\"/var/lib/hearth/initialized\""), text(512, "an absolute path", checks::absolute);
    }
}

choice! {
    /// How the store is unlocked at start-up.
    UnlockMethod {
        /// By a file of mode 0400.
        KeyFile = "key_file",
        /// By a systemd credential.
        Credential = "credential",
        /// By a person, once per start.
        Passphrase = "passphrase",
    }
}

section! {
    /// How the store is unlocked at start-up.
    Unlock = "unlock" {
        /// Which of the ways is used.
        method: UnlockMethod = set("\"key_file\""), Kind::Choice(UnlockMethod::WORDS);
        /// The key file, mode 0400, outside of the store's folder; used by the method of that name.
        key_file: PathBuf = set("\"/etc/hearth/unlock.key\""), text(512, "an absolute path", checks::absolute);
        /// Name of the systemd credential; used by the method of that name.
        credential: String = set("\"hearth.unlock\""), text(128, "a credential name", checks::credential);
    }
}

impl Unlock {
    /// The secret that the method names; none where a person types it.
    pub(crate) fn secret(&self, resolved: &Resolved) -> Option<SecretRef> {
        match self.method {
            UnlockMethod::KeyFile => Some(SecretRef::File(self.key_file.clone())),
            UnlockMethod::Credential => Some(resolved.credential(&self.credential)),
            UnlockMethod::Passphrase => None,
        }
    }
}

section! {
    /// What holds for all model servers.
    Model = "model" {
        /// How long a server is asked to keep the model in memory after an
        /// answer; 0 unloads it at once. Only Ollama listens to it.
        keep_alive_s: Duration = set("1800"), number(0, 604_800, "seconds");
        /// Load the first model right after start-up, so that the first question is not the slow one.
        warm_up: bool = set("true"), Kind::Flag;
        /// Conversations that remote servers may answer, by name; "*" is all
        /// of them. All others stay in the home, whatever servers there are.
        remote_conversations: Vec<String> = set("[]"), texts(64, 64, "the name of a conversation", checks::filled);
    }
}

choice! {
    /// The language that a model server speaks.
    Wire {
        /// Ollama's own API.
        Ollama = "ollama",
        /// The OpenAI-compatible chat API of many servers.
        OpenAi = "openai",
        /// The messages API of Anthropic.
        Anthropic = "anthropic",
    }
}

section! {
    /// One model on one server. The first that answers is used: put them in
    /// order of preference. Any row in the file replaces the built-in one.
    Endpoint = "model.endpoint" [rows 8, default 1, required &["name", "url", "model"]] {
        /// Short name, shown with every answer.
        name: String = set("\"local\""), text(32, "a name", checks::word);
        /// The language that the server speaks.
        wire: Wire = set("\"ollama\""), Kind::Choice(Wire::WORDS);
        /// Address of the server, without the path of the API.
        url: Url = set("\"http://127.0.0.1:11434\""), text(256, "an http or https address", checks::http_url);
        /// Name of the model as the server knows it.
        model: String = set("\"qwen3:4b\""), text(256, "one line of text", checks::filled);
        /// Where the server's key lies. The key itself must not be written here.
        /// When unset, no key is sent.
        api_key: Option<SecretRef> = unset("{ credential = \"model-key\" }"), Kind::Secret;
        /// True for a server that is not in the home: it needs https, and
        /// private conversations never go there.
        remote: bool = set("false"), Kind::Flag;
        /// Size of the context. Every request names the same size.
        /// When unset, 4096 below 6 GiB of memory and 8192 above.
        context_tokens: Option<u32> = unset("8192"), number(1_024, 1_048_576, "tokens");
        /// Most tokens that one answer may have.
        max_tokens: u32 = set("1024"), number(16, 65_536, "tokens");
        /// How freely the model picks its words.
        /// When unset, what the server thinks best.
        temperature: Option<f64> = unset("0.3"), Kind::Real { min: 0.0, max: 2.0 };
        /// Longest wait for a connection.
        connect_s: Duration = set("10"), number(1, 120, "seconds");
        /// Longest wait for the first token; loading a model and reading the prompt count.
        /// When unset, 300 for a server in the home and 60 for a remote one.
        first_token_s: Option<Duration> = unset("300"), number(1, 3_600, "seconds");
        /// Longest silence between two tokens.
        between_tokens_s: Duration = set("60"), number(1, 600, "seconds");
    }
}

impl Endpoint {
    /// The wait for the first token that holds.
    pub fn first_token(&self) -> Duration {
        self.first_token_s.unwrap_or(Duration::from_secs(if self.remote { 60 } else { 300 }))
    }
}

section! {
    /// Limits of one turn: a question, the tool calls, the answer.
    Turn = "turn" {
        /// Most model calls; at the limit the turn ends as looping.
        max_steps: u32 = set("32"), number(1, 256, "model calls");
        /// Most tool calls in one model step; further ones are answered with an error.
        max_calls_per_step: usize = set("16"), number(1, 64, "calls");
        /// Longest turn with a model in the home.
        budget_local_s: Duration = set("600"), number(5, 7_200, "seconds");
        /// Longest turn with a remote model.
        budget_remote_s: Duration = set("120"), number(5, 7_200, "seconds");
        /// Most of one tool result that the model is shown.
        tool_result_bytes: usize = set("65536"), number(1_024, 1_048_576, "bytes");
        /// Most of the earlier conversation that is read for a turn, before it
        /// is trimmed to the model's context.
        history_bytes: usize = set("262144"), number(1_024, 4_194_304, "bytes");
        /// Most earlier exchanges that are read for a turn.
        history_exchanges: usize = set("64"), number(0, 1_024, "exchanges");
        /// Cancel a turn when the console that asked for it goes away.
        cancel_on_disconnect: bool = set("true"), Kind::Flag;
    }
}

section! {
    /// What the agent may do, and how it speaks. Each turn gets what both this
    /// list and the trust in its sender allow.
    Agent = "agent" {
        /// Scopes that the agent holds, as `base` or `base:qualifier`.
        capabilities: CapabilitySet = set("[\"audit.read\", \"config.read\", \"fs.delete\", \"fs.metadata\", \"fs.read\", \"fs.write\", \"llm.call\", \"memory.forget\", \"memory.read\", \"memory.write\", \"net.dns\", \"net.fetch\"]"),
            texts(64, 256, "a scope", checks::scope);
        /// A few words on how to behave, added to the system text. They cost
        /// prompt tokens on every turn.
        /// When unset, nothing is added.
        persona: Option<String> = unset("\"You are calm and brief.\""), text(2_048, "text", checks::any);
        /// The language to answer in.
        /// When unset, the language of the question.
        language: Option<String> = unset("\"English\""), text(32, "one line of text", checks::filled);
    }
}

section! {
    /// What holds for all tools.
    Tools = "tools" {
        /// Tools that are never offered, by name.
        disabled: Vec<String> = set("[]"), texts(64, 64, "a tool name", checks::tool);
    }
}

choice! {
    /// What file tools may do in a folder.
    Access {
        /// Read and list.
        Read = "read",
        /// Read, list, write and delete.
        Write = "write",
    }
}

section! {
    /// A folder that file tools may use, with all below it. Without a row, file
    /// tools have nothing to work on.
    FileRoot = "tools.root" [rows 16, default 0, required &["path"]] {
        /// The folder. It must not hold or lie in the store or the key file.
        path: PathBuf = set("\"/srv/hearth/notes\""), text(512, "an absolute path", checks::absolute);
        /// What may be done there.
        mode: Access = set("\"read\""), Kind::Choice(Access::WORDS);
    }
}

section! {
    /// Fetching of web pages.
    FetchTool = "tools.fetch" {
        /// Offer the tool at all.
        enabled: bool = set("true"), Kind::Flag;
        /// Hosts in the home network that may be fetched from, as host or
        /// host:port. All other private addresses are refused.
        lan_hosts: Vec<String> = set("[]"), texts(32, 256, "host or host:port", checks::lan_host);
        /// Largest body, after decompression.
        max_bytes: usize = set("2097152"), number(1_024, 16_777_216, "bytes");
        /// Most redirects that are followed.
        redirects: usize = set("5"), number(0, 10, "redirects");
        /// Longest wait for a connection.
        connect_s: Duration = set("5"), number(1, 60, "seconds");
        /// Longest wait for the first byte.
        first_byte_s: Duration = set("10"), number(1, 120, "seconds");
        /// Longest fetch in all.
        total_s: Duration = set("30"), number(1, 300, "seconds");
    }
}

section! {
    /// Running of programs. Only a trusted sender gets it; it also needs the
    /// scope `shell.exec` in `agent.capabilities`.
    ShellTool = "tools.shell" {
        /// Offer the tool at all.
        enabled: bool = set("false"), Kind::Flag;
        /// Programs that may be run, by name or absolute path.
        commands: Vec<String> = set("[]"), texts(64, 256, "the name or path of a program", checks::command);
    }
}

choice! {
    /// The highest trust that a channel can have.
    Ceiling {
        /// As the origin of a message allows.
        Trusted = "trusted",
        /// Like an identified person on a transport that is not ours.
        SemiTrusted = "semi_trusted",
        /// Like a stranger.
        Untrusted = "untrusted",
    }
}

section! {
    /// The console socket, through which the other verbs of `hearth` reach the daemon.
    Console = "console" {
        /// The socket. Its folder is closed to all others.
        socket: PathBuf = set("\"/run/hearth/console.sock\""), text(100, "an absolute path", checks::absolute);
        /// User id of the owner. Only this user and root are let in.
        /// When unset, the user that runs the daemon.
        owner_uid: Option<u32> = unset("1000"), number(0, 4_294_967_294, "as a user id");
        /// The highest trust that the console can have. It can only be lowered.
        ceiling: Ceiling = set("\"trusted\""), Kind::Choice(Ceiling::WORDS);
        /// Most connections at once.
        connections: usize = set("16"), number(1, 256, "connections");
        /// Most connections of one user at once.
        connections_per_uid: usize = set("4"), number(1, 256, "connections");
        /// Longest time for the rest of a frame once it has begun.
        frame_s: Duration = set("5"), number(1, 60, "seconds");
        /// Longest silence on a connection that waits for nothing.
        idle_s: Duration = set("600"), number(5, 86_400, "seconds");
    }
}

section! {
    /// Limits of the daemon.
    Limits = "limits" {
        /// Longest message.
        message_bytes: usize = set("65536"), number(256, 524_288, "bytes");
        /// Most messages that wait for their turn; further ones are refused.
        waiting: usize = set("32"), number(1, 1_024, "messages");
        /// Turns that run at the same time, each in another conversation. A
        /// local server answers one after the other anyway.
        turns: usize = set("1"), number(1, 16, "turns");
        /// Longest wait for running turns when the daemon stops.
        shutdown_s: Duration = set("5"), number(1, 300, "seconds");
    }
}

choice! {
    /// How much is logged.
    LogLevel {
        /// What failed.
        Error = "error",
        /// And what is odd.
        Warn = "warn",
        /// And what was done.
        Info = "info",
        /// And how.
        Debug = "debug",
    }
}

section! {
    /// The log. It holds no message text and no secret at any level.
    Log = "log" {
        /// How much is logged.
        level: LogLevel = set("\"info\""), Kind::Choice(LogLevel::WORDS);
    }
}

/// The checked default of a key, or nothing where it stays unset.
pub(crate) fn default_of(spec: &crate::spec::Spec) -> Value {
    match spec.default {
        crate::spec::Default::Unset { .. } => Value::Unset,
        crate::spec::Default::Set(text) => parse(spec, text),
    }
}

/// Checks TOML text from a declaration.
pub(crate) fn parse(spec: &crate::spec::Spec, text: &str) -> Value {
    toml::de::DeValue::parse(text)
        .ok()
        .and_then(|value| spec.kind.read_toml(value.get_ref()).ok())
        .unwrap_or_else(|| unreachable!("the declaration of {} is not sound: {text}", spec.name))
}
