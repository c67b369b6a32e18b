#!/bin/sh
# Makes .compose: a password for each user, Airflow's connections with those of both principals. What is there stays.
set -eu
umask 077
mkdir -p .compose
cd .compose
for user in admin mirror-control mirror-data app; do
    [ -s "$user.properties" ] || echo "$user=$(openssl rand -hex 24)" > "$user.properties"
    cat "$user.properties"
done > passwords.properties

password_of() { sed -n "s/^$1=//p" "$1.properties"; }

for cluster in east west; do
    cat << END
$cluster:
  conn_type: kafka_cluster
  host: "$cluster:9092"
  login: mirror-control
  password: "$(password_of mirror-control)"
  extra:
    security_protocol: SASL_PLAINTEXT
    sasl_mechanism: SCRAM-SHA-512
    data_username: mirror-data
    data_password: "$(password_of mirror-data)"
END
done > connections.yaml
