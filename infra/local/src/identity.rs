//! The identities on this machine: the account, the region, and the key pairs that the endpoints
//! accept.

/// The account in ARNs and queue URLs; it owns all resources.
pub const ACCOUNT: &str = "000000000000";

/// The region of all resources. Requests signed for another region are accepted too.
pub const REGION: &str = "us-east-1";

/// Returns the ARN of the function `name` in the local stack.
pub fn function_arn(name: &str) -> String {
    format!("arn:aws:lambda:{REGION}:{ACCOUNT}:function:{name}")
}

/// The keys that functions sign with, so that their calls are counted separately. Each process has
/// an access key of its own, which begins with this one ([`FunctionProcess::access_key`]); the
/// secret is the same.
pub const FUNCTION: KeyPair = KeyPair {
    access_key_id: "function",
    secret_access_key: "function",
};

/// The keys for all other clients:
/// `AWS_ACCESS_KEY_ID=local AWS_SECRET_ACCESS_KEY=local aws --endpoint-url …`.
pub const LOCAL: KeyPair = KeyPair {
    access_key_id: "local",
    secret_access_key: "local",
};

/// A static key pair. It is not a secret: it opens a loopback port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyPair {
    /// `AWS_ACCESS_KEY_ID`.
    pub access_key_id: &'static str,
    /// `AWS_SECRET_ACCESS_KEY`.
    pub secret_access_key: &'static str,
}

/// One process of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FunctionProcess<'a> {
    /// The function's name.
    pub function: &'a str,
    /// The id that distinguishes the process from all others.
    pub process: &'a str,
}

impl<'a> FunctionProcess<'a> {
    /// Returns the access key that the process signs with.
    #[must_use]
    pub fn access_key(&self) -> String {
        let Self { function, process } = self;
        format!("{}.{function}.{process}", FUNCTION.access_key_id)
    }
}

/// The signer of a request, according to its access key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signer<'a> {
    /// A function, with the process if the key contains it.
    Function(Option<FunctionProcess<'a>>),
    /// An outside client.
    Outside,
}

impl<'a> Signer<'a> {
    /// Reads an access key.
    #[must_use]
    pub fn of(access_key: &'a str) -> Self {
        match access_key.strip_prefix(FUNCTION.access_key_id) {
            Some("") => Self::Function(None),
            Some(rest) => match rest
                .strip_prefix('.')
                .and_then(|rest| rest.rsplit_once('.'))
            {
                Some((function, process)) => {
                    Self::Function(Some(FunctionProcess { function, process }))
                }
                None => Self::Outside,
            },
            None => Self::Outside,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_of_a_process_names_it() {
        let process = FunctionProcess {
            function: "worker",
            process: "7",
        };
        let key = process.access_key();
        assert_eq!(Signer::of(&key), Signer::Function(Some(process)));
    }

    #[test]
    fn keys_that_only_resemble_those_of_functions_are_from_outside() {
        assert_eq!(Signer::of("function"), Signer::Function(None));
        for key in ["local", "functional", "function.worker", "", "Function"] {
            assert_eq!(Signer::of(key), Signer::Outside, "{key}");
        }
    }
}
